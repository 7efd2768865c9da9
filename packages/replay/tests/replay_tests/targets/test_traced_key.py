"""The key of a graph of Dynamo's: equal for what is compiled alike, another for whatever could make it another."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._inductor import config as inductor_config

import npucompose
from npucompose.targets.backend import Backend
from npucompose_replay.kept import traced_key
from npucompose_replay.kept.traced_key import NoKey, key_of

MODE = "mode=max-autotune"


def graph_of(
    *, scale: Any = 2.0, function: Any = torch.add, where: str = 'File "m.py", line 3', weight: Any = None
) -> Any:
    root = nn.Module()
    root.w = nn.Parameter(torch.ones(4, 4), requires_grad=False) if weight is None else weight
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(function, (x, graph.get_attr("w")), {"alpha": scale} if function is torch.add else {})
    y.meta = {"stack_trace": where, "nn_module_stack": {"1407": ("L['self'].up", nn.Linear)}}
    graph.output((graph.call_method("relu", (y,)),))
    return fx.GraphModule(root, graph)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return npucompose.backend(MODE)


def key(backend: Backend, graph: Any = None, x: Any = None, source: str = "L['x']") -> str:
    with torch.no_grad():
        return key_of(backend, graph or graph_of(), [torch.ones(4, 4) if x is None else x], [source])


def test_a_key_is_of_forms_and_not_of_values_or_addresses(backend: Backend):
    again = graph_of(weight=nn.Parameter(torch.zeros(4, 4), requires_grad=False))
    for node in again.graph.nodes:
        if "nn_module_stack" in node.meta:
            node.meta["nn_module_stack"] = {"9": ("L['self'].up", nn.Linear)}
    assert key(backend, again, torch.zeros(4, 4)) == key(backend) == key(npucompose.backend(MODE))


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 3.0},
        {"scale": 2},
        {"function": torch.mul},
        {"where": 'File "m.py", line 4'},
        {"weight": nn.Parameter(torch.ones(4, 4).t().contiguous().t(), requires_grad=True)},
        {"weight": torch.ones(4, 4)},
        {"weight": nn.Parameter(torch.ones(5, 4)[1:], requires_grad=False)},
        {"weight": nn.Parameter(torch.ones(4, 4).double(), requires_grad=False)},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_another_graph_has_another_key(backend: Backend, changed: dict[str, Any]):
    plain = graph_of()
    if isinstance(changed.get("weight"), torch.Tensor) and type(changed["weight"]) is torch.Tensor:
        changed = {"weight": changed["weight"][:, :1].expand(4, 4)}
    assert key(backend, graph_of(**changed)) != key(backend, plain)


def test_another_input_has_another_key(backend: Backend):
    x = torch.ones(8, 4)
    others = [
        x,
        torch.ones(4, 4).t(),
        x[4:],
        torch.ones(4, 4, dtype=torch.float16),
        torch.ones(4, 4, requires_grad=True),
    ]
    keys = {key(backend, x=other) for other in others} | {key(backend), key(backend, source="L['y']")}
    assert len(keys) == len(others) + 2


@pytest.mark.parametrize(
    "choice",
    [
        "passes=cse",
        "inductor.epilogue_fusion=false",
        "inductor.replay=wrapper",
        "inductor.cpp.simdlen=256",
        "+target.kernels.mm_8x8_8x8_float32=template",
        "compile.partial=refuse",
        "check=per_pass",
    ],
)
def test_another_choice_has_another_key(backend: Backend, choice: str):
    assert key(npucompose.backend(MODE, choice)) != key(backend)


def test_another_option_of_a_pass_has_another_key():
    one, other = (npucompose.backend(MODE, "passes=cse", f"passes.cse.stage={stage}") for stage in ("pre", "post"))
    assert key(one) != key(other)


def test_a_persons_own_pass_is_known_by_its_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "own_rewrites.py"
    code = "def rewrite(graph_module, example_inputs, config):\n    return None\n"
    keys = []
    for text in (code, code + "# another\n", code):
        file.write_text(text)
        own = npucompose.backend(MODE, "passes=python", "passes.python.function=own_rewrites:rewrite", "trust=true")
        keys.append(key(own))
    assert keys[0] == keys[2] != keys[1]


def patched(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


@pytest.mark.parametrize(
    "change",
    [
        patched(torch, "__version__", "2.99.0"),
        patched(traced_key, "package_digest", lambda: "other sources"),
        patched(traced_key, "processor", lambda: ("another processor",)),
        patched(torch, "get_num_threads", lambda: 77),
        patched(torch, "are_deterministic_algorithms_enabled", lambda: True),
    ],
    ids=["torch", "sources", "machine", "threads", "determinism"],
)
def test_another_environment_has_another_key(backend: Backend, change: Any, monkeypatch: pytest.MonkeyPatch):
    before = key(backend)
    change(monkeypatch)
    assert key(backend) != before


def own_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + w


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(function=own_function),
        graph_of(function=lambda x, w: x),
        graph_of(function=torch.ops.quantized.add.default),
        graph_of(weight=torch.eye(4).to_sparse()),
    ],
    ids=["a function", "a lambda", "an operator", "a layout"],
)
def test_what_nobody_can_name_has_no_key(backend: Backend, graph: Any):
    with pytest.raises(NoKey):
        key(backend, graph)


def test_functions_of_one_module_are_told_apart(backend: Backend):
    assert key(backend, graph_of(function=torch.mul)) != key(backend, graph_of(function=torch.sub))


def test_a_module_that_is_called_has_no_key(backend: Backend):
    root, graph = nn.Module(), fx.Graph()
    root.inner = nn.ReLU()
    graph.output((graph.call_module("inner", (graph.placeholder("x"),)),))
    with pytest.raises(NoKey, match="calls the module inner"):
        key(backend, fx.GraphModule(root, graph))


@pytest.mark.parametrize("value", [object(), print, int, [Ellipsis, object()]], ids=lambda value: str(type(value)))
def test_an_argument_without_content_has_no_key(value: Any):
    with pytest.raises(NoKey):
        traced_key.text(value)


@pytest.mark.parametrize("value", [3, torch.ones(2, device="meta"), nn.Module()], ids=["number", "meta", "module"])
def test_an_input_that_is_no_plain_tensor_has_no_key(backend: Backend, value: Any):
    with pytest.raises(NoKey):
        key(backend, x=value)


def test_another_setting_of_inductors_has_another_key(backend: Backend):
    with inductor_config.patch(epilogue_fusion=False):
        changed = key(backend)
    assert changed != key(backend)


def test_with_gradients_autocast_or_a_function_among_the_settings_there_is_no_key(backend: Backend):
    given = (backend, graph_of(), [torch.ones(4, 4)], ["x"])
    with pytest.raises(NoKey, match="gradients"):
        key_of(*given)
    with torch.no_grad():
        with torch.autocast("cpu"), pytest.raises(NoKey, match="autocast"):
            key_of(*given)
        with inductor_config.patch(post_grad_custom_post_pass=print), pytest.raises(NoKey, match="is code"):
            key_of(*given)


def test_a_pass_of_which_nothing_says_what_it_holds_has_no_key(backend: Backend):
    other = copy.copy(backend)
    other.target = SimpleNamespace(name="cpu")  # type: ignore[assignment]
    other.pre = copy.copy(backend.pre)
    object.__setattr__(other.pre, "passes", (("odd", Odd()),))
    with pytest.raises(NoKey, match="nothing says what Odd holds"):
        traced_key.backend_text(other)


class Odd:
    def source_files(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (slice(1, None, 2), "slicetuple(1, None, 2)"),
        ({3, 1, 2}, "set(1, 2, 3)"),
        ([0.5, (True, "a")], "list(0x1.0000000000000p-1, tuple(True, 'a'))"),
        ({"b": 1, "a": None}, "{'b': 1, 'a': None}"),
        (torch.float32, "torch.float32"),
    ],
)
def test_plain_values_are_written_by_their_content(value: Any, words: str):
    assert traced_key.text(value) == words


@pytest.mark.parametrize("value", [len, nn.Linear, lambda: 1, object()])
def test_code_and_what_says_nothing_of_itself_have_no_text(value: Any):
    with pytest.raises(NoKey):
        traced_key.text(value)


class Own:
    """A class of this file."""


def test_a_class_has_the_text_of_its_file_and_one_without_a_file_no_key(tmp_path: Any):
    assert traced_key._source(Backend) == ""
    own = traced_key._source(Own)
    assert own.startswith(f"{__file__} ")
    assert len(own.rpartition(" ")[2]) == 64
    made = type("Made", (), {"__module__": "nowhere"})
    with pytest.raises((NoKey, TypeError)):
        traced_key._source(made)
    with pytest.raises(NoKey, match=r"gone\.py cannot be read"):
        traced_key._content(str(tmp_path / "gone.py"))
    (tmp_path / "a.py").write_text("1")
    one = traced_key._content(str(tmp_path / "a.py"))
    (tmp_path / "a.py").write_text("2")
    assert traced_key._content(str(tmp_path / "a.py")) != one


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.aten.add, "aten.add"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.nn.functional.max_pool2d, "torch.nn.functional.max_pool2d"),
        (math.sqrt, "math.sqrt"),
    ],
)
def test_functions_of_torch_and_python_have_their_names(function: Any, words: str):
    assert traced_key._function(function) == words


def test_a_function_within_another_that_only_says_it_is_torchs_has_no_key():
    def max_pool2d(x: torch.Tensor) -> torch.Tensor:
        return x

    max_pool2d.__module__ = "torch.nn.functional"
    with pytest.raises(NoKey, match=r"<locals>\.max_pool2d is not torch's$"):
        traced_key._function(max_pool2d)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (torch.ops.mkldnn._linear_pointwise.default, "^the operator mkldnn._linear_pointwise.default is not torch's$"),
        (key, r"test_traced_key\.key is not torch's$"),
        (torch._higher_order_ops.map, "calls graphs of its own$"),
    ],
)
def test_what_is_not_torchs_or_calls_graphs_has_no_key(function: Any, says: str):
    with pytest.raises(NoKey, match=says):
        traced_key._function(function)
