"""mode=max-autotune with the native replay of it: the wrapper's results bit for bit, from recordings of its kernels."""

from __future__ import annotations

import copy
import gc
import textwrap
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose.errors import CaptureError, SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.detached import DetachError
from npucompose_replay.gate import Refused
from npucompose_replay.inductor.code import InductorCode, UnreadCode
from npucompose_replay.inductor.subjects import Subject
from replay_tests.test_forks import in_child
from tests.graph_helpers import same

FUSED = ("mode=max-autotune", "inductor.max_autotune=null")
"""Without timing kernels: these claims are not about speed."""
WRAPPER = (*FUSED, "inductor.replay=wrapper")


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Block(nn.Module):
    """Products, a norm, a softmax, topk, a cache that is written in place, a result that is a view."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(x + self.down(torch.nn.functional.silu(self.up(x))))
        self.seen.add_(y.mean(0))
        values, places = torch.topk(y.softmax(-1), 4)
        return y + self.seen, values, places, x.t(), (y @ y.t()).sum(0)


def recordings(fast: Any) -> list[Any]:
    return [one for made in fast.materialised.backend.compilations for one in made.lowered.captured]


def side_by_side(module: nn.Module, *overrides: str) -> tuple[Any, nn.Module, Callable[..., Any], Callable[..., Any]]:
    """(the native one compiled, its module, calls of it, calls of the wrapper's)."""
    mine, theirs = module.eval(), copy.deepcopy(module).eval()
    native, wrapper = npucompose.compile(mine, *FUSED, *overrides), npucompose.compile(theirs, *WRAPPER, *overrides)
    return native, mine, native, wrapper


def test_a_graph_of_inductors_is_recorded_replayed_and_detached():
    def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + y).cumsum(0) - 1

    fast = npucompose.compile(pointwise, *FUSED)
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(8, 4), torch.randn(8, 4)
            assert torch.allclose(fast(x, y), pointwise(x, y))
        (one,) = recordings(fast)
        assert one.facts()["ways"]["generated"] >= 1
        assert (fast.statistics.captures, fast.statistics.hits, fast.statistics.eager) == (1, 2, 0)
        handle = fast.detach(x, y, outputs="keep")
        held = handle(x, y)
        assert same([held, handle(y, x)], [fast(x, y), fast(y, x)])


@pytest.mark.slow
@pytest.mark.parametrize("freezing", ["true", "false"])
def test_results_are_the_wrappers_bit_for_bit(freezing: str):
    fast, _, native, wrapper = side_by_side(Block(), f"inductor.freezing={freezing}")
    with torch.no_grad():
        for rows in (6, 6, 6):
            x = torch.randn(rows, 16)
            got, expected = native(x), wrapper(x)
            assert same(got, expected)
            assert got[3].data_ptr() == x.data_ptr()
    assert fast.statistics.hits == 2


def test_nobody_holds_the_result_of_the_call_that_was_recorded():
    fast = npucompose.compile(nn.Linear(4, 4).eval().requires_grad_(False), *FUSED)
    x = torch.randn(3, 4)
    gc.disable()  # what only a circle of references holds is held until it comes
    try:
        first = weakref.ref(fast(x))
        assert first() is None
    finally:
        gc.enable()
    assert len(recordings(fast)) == 1


@pytest.mark.slow
def test_one_compilation_has_a_recording_for_each_signature():
    fast, _, native, wrapper = side_by_side(Block(), "shapes=dynamic", "target.when_new=at_once")
    with torch.no_grad():
        for rows in (5, 6, 7, 5, 6, 7):
            x = torch.randn(rows, 16)
            assert same(native(x), wrapper(x))
    assert len(fast.materialised.backend.compilations) == 1
    assert len(recordings(fast)) == 3


@pytest.mark.slow
def test_threads_compute_what_the_wrappers_do():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, _, native, wrapper = side_by_side(Block())
        with torch.no_grad():
            for _ in range(3):
                x = torch.randn(300, 16)
                assert same(native(x), wrapper(x))
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_handle_made_on_two_threads_is_right_on_one_and_in_a_child_of_fork():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fast, module, _, _ = side_by_side(Block())
        reference, x = copy.deepcopy(module), torch.randn(300, 16)

        near = partial(torch.allclose, rtol=1e-3, atol=1e-3)

        def is_right() -> bool:
            return all(map(near, handle(x), reference(x)))

        with torch.no_grad():
            handle = fast.detach(x)
            reference(x)
            assert handle.captured.facts()["ways"]["generated"] >= 1
            assert is_right()
            torch.set_num_threads(1)
            assert is_right()
            torch.set_num_threads(2)
            handle(x)  # OpenMP's threads are awake
            reference(x)

            def in_the_child() -> bool:
                got = handle(x)
                torch.set_num_threads(1)
                return all(map(near, got, reference(x)))

            assert in_child(in_the_child) == "right"
            assert is_right()
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_frozen_weights_that_change_are_followed_by_calls_and_refused_by_handles():
    fast, module, native, _ = side_by_side(Block())
    x = torch.randn(6, 16)
    with torch.no_grad():
        handle = fast.detach(x)
        before = handle(x)[0].clone()
        module.up.weight.mul_(2)
        with pytest.raises(SignatureError, match=r"up\.weight was written to: detach again"):
            handle(x)
        module.seen.zero_()
        with pytest.warns(RuntimeWarning, match="frozen weights have changed"):
            got = native(x)[0]
        module.seen.zero_()
        assert torch.allclose(got, module(x)[0], atol=1e-5)
        assert not torch.allclose(got, before)


@pytest.mark.slow
def test_weights_that_are_inputs_are_read_where_they_lie():
    fast, module, _, _ = side_by_side(Block(), "inductor.freezing=false")
    x = torch.randn(6, 16)
    with torch.no_grad():
        handle = fast.detach(x)
        module.up.weight.mul_(2)
        module.seen.zero_()
        got = handle(x)[0].clone()
        module.seen.zero_()
        assert torch.allclose(got, module(x)[0], atol=1e-5)


@pytest.mark.slow
def test_what_needs_a_number_out_of_data_is_left_to_the_wrapper_and_named():
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[: int(x.sum().item())] + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        fast = npucompose.compile(model, *FUSED)
        for _ in range(2):
            assert same([fast(torch.ones(4))], [model(torch.ones(4))])
    (made,) = fast.materialised.backend.compilations
    assert made.partition is not None
    assert made.partition.segments == 0
    assert made.partition.outside[0].reason
    with torch.no_grad(), pytest.raises(DetachError, match="Inductor's wrapper calls its kernels"):
        fast.detach(torch.ones(4))


@pytest.mark.parametrize(("choices", "refused"), [((), False), (("compile.partial=refuse",), True)])
def test_compile_partial_says_what_becomes_of_what_cannot_be_replayed(choices: tuple[str, ...], refused: bool):
    backend = npucompose.backend(*FUSED, *choices)

    graph = torch.fx.GraphModule({}, torch.fx.Graph())
    subject = Subject(
        key="graph_0", fixed=frozenset(), watch=None, written=frozenset(), graph_module=graph, unfused=lambda: graph
    )

    def recorded() -> Any:
        recording: Any = backend.target.recording  # type: ignore[attr-defined]
        return recording.recorder(backend).lowered(subject, SimpleNamespace(current_callable=len))

    if refused:
        with pytest.raises(CaptureError, match="its code is not called as Python that Inductor generated"):
            recorded()
    else:
        assert recorded().partition().segments == 0


# -- code that is read, without Inductor

HEAD = """
empty_strided_cpu = reinterpret_tensor = None
k = async_compile.cpp_pybinding({types}, 'source')
"""


def unread(tmp_path: Any, body: str, types: str = "['const float*', 'float*']", **more: Any) -> str:
    """Why a module with this body of `call` is not read."""
    source = HEAD.format(types=types) + "def call(args):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    file = tmp_path / "module.py"
    file.write_text(source)
    names: dict[str, Any] = {"empty_strided_cpu": None, "reinterpret_tensor": None, "__file__": str(file), "k": len}
    call = FunctionType((lambda args: args).__code__, {**names, **more}, "call")
    with pytest.raises(UnreadCode) as why:
        InductorCode.of(SimpleNamespace(current_callable=call))
    return str(why.value)


def test_code_that_does_what_nobody_knows_is_not_read(tmp_path: Any):
    assert unread(tmp_path, "surprise(args)") == "calls surprise, of which nobody knows what it does"
    assert "calls buf0.numpy" in unread(tmp_path, "buf0 = args[0]\nreturn buf0.numpy()")
    assert "statement that is not known: with lock:" in unread(tmp_path, "with lock:\n    pass")
    assert "has a kernel whose library is not known: k" in unread(tmp_path, "k(args)")


@pytest.mark.parametrize(
    "check", sorted({"assert_size_stride", "assert_size_stride_grouped", "assert_tensor_metadata", "assert_alignment"})
)
def test_what_only_looks_at_tensors_is_no_reason_not_to_read(tmp_path: Any, check: str):
    assert unread(tmp_path, f"{check}(args)\nsurprise(args)").startswith("calls surprise,")


def test_a_kernel_of_other_parameters_is_not_called_by_address(tmp_path: Any):
    library = SimpleNamespace(__file__=None)
    assert "whose library" in unread(tmp_path, "k(args)", k=SimpleNamespace(__self__=library))
    exporting = SimpleNamespace(__file__=torch._C.__file__)
    assert "does not export" in unread(tmp_path, "k(args)", k=SimpleNamespace(__self__=exporting))


def test_a_callable_that_inductor_did_not_generate_is_not_read():
    for call in (None, len, lambda args: args):
        with pytest.raises(UnreadCode, match="is not called as Python that Inductor generated"):
            InductorCode.of(SimpleNamespace(current_callable=call))


def test_a_graph_in_which_nothing_is_called_is_recorded():
    recording, _ = CapturedGraph.capture_code(
        InductorCode.of(lambda inputs: inputs[::-1]), [torch.ones(2), torch.ones(3)]
    )
    x, y = torch.randn(2), torch.randn(3)
    assert all(got is given for got, given in zip(recording.replay(x, y), (y, x), strict=True))
    kept = torch.ones(2)
    with pytest.raises(Refused, match="nobody told where"):
        CapturedGraph.capture_code(InductorCode.of(lambda inputs: [kept]), [torch.ones(2)])


def test_code_whose_source_is_gone_is_not_read(tmp_path: Any):
    assert "has no source that can be read" in unread(tmp_path, "pass", __file__=str(tmp_path / "gone.py"))
    assert "has no source that can be read" in unread(tmp_path, "pass", __file__=__file__.replace(".py", ".txt"))
    assert "has no source that can be read" in unread(tmp_path, "return (")


def test_code_may_copy_into_a_buffer(tmp_path: Any):
    assert "calls surprise" in unread(tmp_path, "buf0.copy_(args[0], False)\nsurprise(args)")


def test_code_may_raise_where_numbers_are_not_what_it_was_made_for(tmp_path: Any):
    assert "calls surprise" in unread(tmp_path, "if not args:\n    raise RuntimeError('none')\nsurprise(args)")


def test_a_partitioned_graph_is_not_read(tmp_path: Any):
    class Runner:
        partitions = (1,)

        def call(self, args: Any) -> Any:
            return args

    Runner.call.__globals__.update(empty_strided_cpu=None, reinterpret_tensor=None)
    try:
        with pytest.raises(UnreadCode, match="is partitioned"):
            InductorCode.of(SimpleNamespace(current_callable=Runner().call))
    finally:
        for name in ("empty_strided_cpu", "reinterpret_tensor"):
            del Runner.call.__globals__[name]
