"""A compiled module stays a module: whatever torch's OptimizedModule does, this does, and results follow."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import OptimizedModule

import npucompose
from npucompose.errors import CompileError, ConfigError

RECORDED = "mode=reduce-overhead"


class Net(nn.Module):
    """What a module has: parameters, buffers, a mode that changes results, attributes, a method."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(6))
        self.name, self.factor = "net", 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.relu(self.norm(self.up(x)))) * self.scale * self.factor

    def twice(self, x: float) -> float:
        return 2 * x


class Inner(nn.Module):
    """As a language model is: the module inside is called `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def net() -> Net:
    return Net().requires_grad_(False).eval()


def same(fast: Callable[..., Any], reference: Callable[..., Any], shape: tuple[int, ...] = (3, 4)) -> None:
    """Two calls give what the reference gives, bit for bit; random numbers are drawn from the same seed."""
    dtype = next((p.dtype for p in getattr(fast, "parameters", list)()), torch.float32)
    for seed in (1, 2):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        with torch.no_grad():
            torch.manual_seed(seed)
            expected = reference(x)
            torch.manual_seed(seed)
            assert torch.equal(fast(x), expected)


def test_it_is_a_module_and_torch_s_optimized_module(net: Net):
    fast = npucompose.compile(net, RECORDED)
    assert isinstance(fast, OptimizedModule)
    assert fast._orig_mod is net
    assert fast.model is net
    assert isinstance(npucompose.compile(net, "mode=eager"), nn.Module)


def doubled(module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
    return result * 2


LOOKS: dict[str, Callable[[Any], Any]] = {
    "state_dict": lambda m: sorted(m.state_dict()),
    "parameters": lambda m: [id(p) for p in m.parameters()],
    "buffers": lambda m: [id(b) for b in m.buffers()],
    "named_parameters": lambda m: [name for name, _ in m.named_parameters()],
    "named_modules": lambda m: [name for name, _ in m.named_modules()],
    "children": lambda m: [id(child) for child in m.children()],
    "training": lambda m: (m.training, m.train().training, m.eval().training),
    "attribute": lambda m: (m.name, m.factor, m.twice(3)),
    "get_parameter": lambda m: id(m.up.weight),
    "hasattr": lambda m: hasattr(m, "nothing"),
    "apply": lambda m: m.apply(lambda _: None) is m,
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_it_shows_is_what_torch_compile_shows(net: Net, look: str):
    assert LOOKS[look](npucompose.compile(net, RECORDED)) == LOOKS[look](torch.compile(net, backend="eager"))


def test_dir_names_what_the_module_has_and_what_the_wrapper_has(net: Net):
    assert {"factor", "up", "twice", "detach", "materialised", "effective"} <= set(dir(npucompose.compile(net)))


def test_a_state_dict_goes_to_another_compiled_module_and_to_torch_s(net: Net):
    torch.manual_seed(1)
    other = Net().requires_grad_(False).eval()
    fast = npucompose.compile(net, RECORDED)
    same(fast, net)
    fast.load_state_dict(npucompose.compile(other, RECORDED).state_dict())
    same(fast, other)
    nn.Module.load_state_dict(torch.compile(other, backend="eager"), fast.state_dict())  # type: ignore[arg-type]


def test_train_and_eval_make_graphs_of_their_own_and_results_follow(net: Net):
    reference = copy.deepcopy(net)
    fast = npucompose.compile(net, RECORDED)
    for training in (False, True, False, True):
        fast.train(training)
        reference.train(training)
        assert net.drop.training == training
        same(fast, reference)
        torch.testing.assert_close(net.norm.running_mean, reference.norm.running_mean, rtol=0, atol=0)
    assert len(fast.materialised.backend.compilations) == 2


def test_another_dtype_and_back(net: Net):
    reference = copy.deepcopy(net)
    fast = npucompose.compile(net, RECORDED)
    for change in ("float", "bfloat16", "double", "float"):
        assert getattr(fast, change)() is fast
        same(fast, getattr(reference, change)())
    assert next(fast.requires_grad_().parameters()).requires_grad


def test_attributes_are_read_set_and_deleted_on_the_module(net: Net):
    reference = copy.deepcopy(net)
    fast = npucompose.compile(net, RECORDED)
    same(fast, reference)
    fast.factor = reference.factor = 3.0
    assert net.factor == 3.0
    same(fast, reference)
    fast.up = reference.up = nn.Linear(4, 6).requires_grad_(False)
    same(fast, reference)
    del fast.name
    assert not hasattr(net, "name")


def test_a_deleted_weight_is_missed_in_a_sentence(net: Net):
    fast = npucompose.compile(net, RECORDED)
    same(fast, net)
    del fast.up.weight
    with torch.no_grad(), pytest.raises((CompileError, AttributeError), match="weight"):
        fast(torch.randn(3, 4))


@pytest.mark.parametrize("mode", ["eager", "reduce-overhead"])
def test_hooks_of_the_compiled_module_run_around_it(net: Net, mode: str):
    fast = npucompose.compile(net, f"mode={mode}")
    pre = fast.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    post = fast.register_forward_hook(doubled)
    same(fast, lambda x: net(x + 1) * 2)
    pre.remove()
    post.remove()
    same(fast, net)


def test_backward_hooks_of_the_compiled_module_run(net: Net):
    seen: list[torch.Size] = []
    fast = npucompose.compile(net.requires_grad_(), RECORDED)
    fast.register_full_backward_hook(lambda module, given, wanted: seen.append(wanted[0].shape))
    fast(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert seen == [torch.Size([3, 6])]


def test_a_deep_copy_is_another_model_compiled_anew(net: Net):
    fast = npucompose.compile(net, [RECORDED, "passes=cse"])
    same(fast, net)
    fast.register_forward_hook(doubled)
    other = copy.deepcopy(fast)
    assert other._orig_mod is not net
    assert other.materialised.backend is not fast.materialised.backend
    same(other, lambda x: net(x) * 2)
    with torch.no_grad():
        other.up.weight.zero_()
    same(fast, lambda x: net(x) * 2)


def test_pickle_keeps_the_choices_and_their_folders(net: Net, tmp_path: Path):
    folder = tmp_path / "conf" / "passes"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# mine\ncse:\n  stage: pre\n", encoding="utf-8")
    fast = npucompose.compile(net, RECORDED, "passes=mine", config_dirs=[str(tmp_path / "conf")])
    same(fast, net)
    file = io.BytesIO()
    torch.save(fast, file)
    for other in (pickle.loads(pickle.dumps(fast)), torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
        assert [name for name, _ in other.materialised.pre.passes] == ["cse"]
        assert other.materialised.experiment.mode.name == "reduce-overhead"
        same(other, net)


def test_a_container_is_indexed_counted_and_walked_as_the_container_itself():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False)
    fast = npucompose.compile(net, RECORDED)
    assert (len(fast), fast[1], list(fast), net[0] in fast) == (2, net[1], list(net), True)
    same(fast, net)
    fast[1] = nn.Tanh()
    assert isinstance(net[1], nn.Tanh)
    same(fast, net)
    del fast[1]
    assert len(net) == 1
    same(fast, net)
    assert "key" in npucompose.compile(nn.ModuleDict({"key": nn.ReLU()}))


def test_a_module_that_is_no_container_says_so_and_is_true(net: Net):
    fast = npucompose.compile(net, RECORDED)
    assert fast
    for look in (len, iter, lambda m: m[0]):
        with pytest.raises(TypeError, match="Net"):
            look(fast)


def test_a_model_inside_a_model_is_reached_under_its_name():
    outer = Inner().requires_grad_(False)
    fast = npucompose.compile(outer, RECORDED)
    assert fast.model is outer.model
    assert fast._orig_mod is outer
    fast.model = nn.Linear(4, 4).requires_grad_(False)
    assert outer.model is fast.model
    same(fast, outer)


def test_a_module_that_has_no_model_inside_is_reached_as_the_model(net: Net):
    fast = npucompose.compile(net, RECORDED)
    assert fast.model is net
    with pytest.raises(AttributeError, match="no_such_name"):
        assert fast.no_such_name


def test_the_same_module_can_be_compiled_twice_and_a_compiled_one_again(net: Net):
    first = npucompose.compile(net, RECORDED)
    again = npucompose.compile(first, RECORDED, "passes=cse")
    torch_s: Any = torch.compile(net, backend="eager")
    for fast in (first, again, npucompose.compile(torch_s, RECORDED), first):
        assert fast._orig_mod is net
        same(fast, net)
    assert len(again.materialised.backend.compilations) == 1


def test_a_compiled_part_of_a_model_is_called_by_the_rest_and_seen_through_by_torch_compile(net: Net):
    part = npucompose.compile(net, RECORDED)
    whole = nn.Sequential(nn.Linear(4, 4), part).requires_grad_(False)
    plain = nn.Sequential(whole[0], net)
    same(whole, plain)
    same(torch.compile(whole, backend="eager", fullgraph=True), plain)
    assert len(part.materialised.backend.compilations) == 1


def test_a_lazy_module_is_initialised_by_its_first_call():
    lazy = nn.LazyLinear(3)
    fast = npucompose.compile(lazy, RECORDED)
    with torch.no_grad():
        assert fast(torch.randn(2, 4)).shape == (2, 3)
    same(fast, lazy)


def documented(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    """Twice x."""
    return x * factor


def test_a_compiled_function_is_named_and_pickled_as_the_function():
    fast = npucompose.compile(documented, RECORDED)
    assert (fast.__name__, fast.__doc__, fast.__wrapped__) == ("documented", "Twice x.", documented)
    for made in (fast, pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast), npucompose.compile(fast, RECORDED)):
        assert made.model is documented
        same(made, documented)


def test_a_compiled_function_in_a_class_is_a_method():
    class Holder:
        offset = 1.0

        @npucompose.compile
        def shifted(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.offset

    same(Holder().shifted, lambda x: x + 1.0)


@pytest.mark.parametrize(
    ("model", "choices", "words"),
    [
        ("mode=reduce-overhead", (), "takes a module or a function first, then its choices; given 'mode=reduce"),
        (documented, ({"mode": "eager"},), r"a choice is a text like 'mode=reduce-overhead'; given \{'mode'"),
        (documented, (["model=add"],), "'model=add' has no meaning here"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(model: Any, choices: tuple[Any, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        npucompose.compile(model, *choices)


def test_the_function_that_is_called_is_the_model_itself_in_eager_and_another_elsewhere():
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    eager, other = (npucompose.compile(doubled, f"mode={mode}") for mode in ("eager", "reduce-overhead"))
    assert eager._call is doubled
    assert other._call is not doubled
    assert eager._original() is other._original() is doubled
