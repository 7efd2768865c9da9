"""What the native replayer adds to the claims that all executors share: kernels without a dispatcher, their traps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.memory.arena import Memory
from tests.graph_helpers import in_threads, traced


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


def same(got: Any, expected: Any) -> bool:
    return len(got) == len(expected) and all(same_bytes(a, b) for a, b in zip(got, expected, strict=True))


def native(function: Callable[..., Any], *inputs: Any, **options: Any) -> CapturedGraph:
    captured = CapturedGraph.capture(traced(function, *inputs), list(inputs), executor="native", **options)
    assert captured.facts()["executor"] == "native", captured.facts()["executor_reason"]
    return captured


def ways(captured: CapturedGraph) -> dict[str, str]:
    """{operator: how it runs}"""
    assert isinstance(captured.executor, Native)
    steps = zip(captured.plan.steps, captured.executor.ways, strict=True)
    return {str(step.op).removeprefix("aten."): way for step, way in steps}


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.nn.functional.silu(x @ w) * 0.5 + b
    scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (torch.softmax(h * scale, -1), h.flip(0))


def block_inputs(seed: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=made) for s in ((5, 8), (8, 16), (16,))]


def test_what_pays_runs_without_the_dispatcher_and_the_rest_through_it() -> None:
    captured = native(block, *block_inputs(0))
    assert ways(captured) == {
        "mm.out": "blas" if _has_sgemm() else "held",
        "silu.out": "held",
        "mul.out": "held",
        "add.out": "held",
        "pow.Tensor_Scalar_out": "held",
        "mean.out": "held",
        "rsqrt.out": "held",
        "_softmax.out": "held",
        "flip.default": "boxed",
        "copy_.default": "boxed",
        "view.default": "boxed",
    }
    assert sum(captured.facts()["ways"].values()) == captured.facts()["kernels"]


def test_the_same_plan_through_the_dispatcher_alone_gives_the_same_bits() -> None:
    inputs = block_inputs(0)
    captured = native(block, *inputs)
    memory = Memory.from_plan(captured.plan)
    boxed = Native(build.load(), captured.plan, memory, direct=False)
    assert set(boxed.ways) == {"boxed"}
    boxed.recording.times(list(range(len(boxed.ways))), 1)
    replayed = captured.replay(*inputs)
    mine = [o.slot.layout.over(memory.storages[id(o.slot.root)]) for o in captured.plan.outputs]  # type: ignore[union-attr]
    assert same(mine, replayed)


def test_inputs_move_under_held_kernels_and_products_without_being_copied() -> None:
    captured = native(block, *block_inputs(0))
    for seed in range(4):
        inputs = block_inputs(seed)
        if seed == 2:  # within larger tensors, where they begin late
            inputs = [torch.cat([torch.full_like(x, 7.0), x])[x.shape[0] :] for x in inputs]
        assert same(captured.replay(*inputs), block(*inputs))
    assert not captured._inputs._private


def test_memory_that_was_freed_since_the_capture_is_never_read() -> None:
    captured = native(block, *block_inputs(0))  # its inputs are gone: nobody but the recording knew them
    poison = [torch.full((s,), float("nan")) for s in (40, 128, 16)]
    inputs = block_inputs(1)
    assert same(captured.replay(*inputs), block(*inputs))
    del poison


def test_an_input_that_was_resized_or_laid_out_anew_is_refused() -> None:
    inputs = block_inputs(0)
    captured = native(block, *inputs)
    captured.replay(*inputs)
    inputs[0].resize_(4, 8)
    with pytest.raises(SignatureError, match=r"float32\[4,8\]"):
        captured.replay(*inputs)
    inputs = block_inputs(0)
    captured.replay(*inputs)
    inputs[1].t_()
    with pytest.raises(SignatureError, match=r"float32\[16,8\]"):
        captured.replay(*inputs)


def test_a_parameter_whose_data_was_swapped_is_refused_and_not_read_where_it_was() -> None:
    w = torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)
    x = torch.randn(2, 4)
    captured = native(lambda x, w: (x @ w,), x, w, static=frozenset({1}))
    assert same(captured.replay(x, w), (x @ w,))
    w.data = torch.randn(4, 4)
    with pytest.raises(SignatureError, match=" at 0x"):
        captured.replay(x, w)


def test_a_result_that_is_fed_back_is_read_before_it_is_overwritten_wherever_it_came_from() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.tanh(x @ w) + x,)

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    captured = native(step, x, w)
    for start in (x, torch.randn(4, 4)):
        mine = theirs = start
        for _ in range(4):
            (mine,), (theirs,) = captured.replay(mine, w), step(theirs, w)
            assert same_bytes(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double, torch.float32, torch.int32])
def test_a_scalar_operand_keeps_its_ways_in_every_dtype(dtype: torch.dtype) -> None:
    """In half precision ATen takes the scalar out of its iterator while it runs: such a kernel cannot be held."""

    def scaled(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * s, x + s, x * 3 - 1)

    x, s = (torch.randn(33) * 4).to(dtype), torch.tensor(1.7).to(dtype)
    captured = native(scaled, x, s)
    for seed in range(3):
        x, s = (torch.randn(33, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype), s + 1
        assert same(captured.replay(x, s), scaled(x, s))


def test_products_follow_the_precision_that_is_set_when_they_run() -> None:
    inputs = [torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)]

    def products(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ y, torch.addmm(b, x, y))

    before = torch.get_float32_matmul_precision()
    try:
        for first, second in (("highest", "medium"), ("medium", "highest")):
            torch.set_float32_matmul_precision(first)
            captured = native(products, *inputs)
            assert same(captured.replay(*inputs), products(*inputs))
            torch.set_float32_matmul_precision(second)
            assert same(captured.replay(*inputs), products(*inputs))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 1, 8), (8, 8, 1), (3, 5, 7), (64, 300, 17)])
@pytest.mark.parametrize("turned", ["neither", "x", "y", "both", "strided"])
def test_products_of_any_layout_have_eagers_bits(shape: tuple[int, int, int], turned: str) -> None:
    m, k, n = shape

    def made() -> list[torch.Tensor]:
        x = torch.randn(k, m).t() if turned in ("x", "both") else torch.randn(m, k)
        y = torch.randn(n, k).t() if turned in ("y", "both") else torch.randn(k, n)
        if turned == "strided":
            x, y = torch.randn(m, 2 * k)[:, ::2], torch.randn(k, n + 3)[:, 2:-1]
        return [x, y, torch.randn(n)]

    def products(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ y, torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5))

    captured = native(products, *made())
    for _ in range(3):
        inputs = made()
        assert same(captured.replay(*inputs), products(*inputs))


@pytest.fixture
def library():
    with torch.library._scoped_library("npucompose_test", "FRAGMENT") as made:
        yield made


def test_an_operator_written_in_python_may_raise_and_the_recording_stays_usable(library: Any) -> None:
    library.define("half(Tensor x) -> Tensor")

    def half(x: torch.Tensor) -> torch.Tensor:
        if x[0] < 0:
            raise ValueError("negative")
        return x / 2

    library.impl("half", half, "CPU")
    x = torch.ones(3)
    captured = native(lambda x: (torch.ops.npucompose_test.half(x) + 1,), x)
    with pytest.raises(ValueError, match="negative"):
        captured.replay(-x)
    assert captured.replay(x)[0].tolist() == [1.5] * 3


def test_a_replay_within_its_own_replay_is_refused(library: Any) -> None:
    library.define("again(Tensor x) -> Tensor")
    recordings: list[CapturedGraph] = []

    def again(x: torch.Tensor) -> torch.Tensor:
        if recordings:
            recordings[0].replay(x)
        return x * 2

    library.impl("again", again, "CPU")
    x = torch.ones(2)
    captured = native(lambda x: (torch.ops.npucompose_test.again(x) + 1,), x)
    recordings.append(captured)
    with pytest.raises(RuntimeError, match="from within its own replay"):
        captured.replay(x)
    recordings.clear()
    assert captured.replay(x)[0].tolist() == [3.0, 3.0]


def test_threads_that_replay_one_recording_get_their_own_results() -> None:
    captured = native(block, *block_inputs(0), clone_output=True)
    wrong: list[int] = []

    def work(seed: int) -> None:
        inputs = block_inputs(seed)
        with torch.no_grad():
            expected = block(*inputs)
            for _ in range(100):
                if not same(captured.replay(*inputs), expected):
                    wrong.append(seed)

    in_threads(work)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_after_the_capture_replays_for_itself() -> None:
    inputs = block_inputs(0)
    captured = native(block, *inputs)
    kept = captured.replay(*inputs)
    before = [out.clone() for out in kept]
    child = os.fork()
    if child == 0:
        other = block_inputs(1)
        os._exit(0 if same(captured.replay(*other), block(*other)) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert same(kept, before)


def test_a_list_that_is_made_anew_and_a_list_that_is_read_come_through() -> None:
    def lists(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [torch.sort(part)[0] for part in torch.ops.aten.split_copy.Tensor(x, 2)]
        return (torch.cat([*parts, x]), x[:, i], x[i])

    x, i = torch.randn(6, 6), torch.tensor([3, 0])
    captured = native(lists, x, i)
    for _ in range(3):
        x = torch.randn(6, 6)
        assert same(captured.replay(x, i), lists(x, i))


def test_a_caller_returns_all_outputs_or_one_whatever_they_are() -> None:
    def outputs(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        return (y, x, y, w, x.relu())

    w, x = torch.randn(3, 3), torch.randn(3, 3)
    captured = native(outputs, w, x, static=frozenset({0}))
    given = torch.randn(3, 3)
    expected = outputs(w, given)
    for kind in (tuple, list):
        call = captured.caller([w, None], [(1, 0)], kind)
        assert call is not None
        got = call((given,))
        assert type(got) is kind
        assert same(got, expected)
        assert (got[1] is given, got[2] is got[0], got[3] is w) == (True, True, True)
    for number in range(5):
        call = captured.caller([w, None], [(1, 0)], number)
        assert call is not None
        assert same_bytes(call((given,)), expected[number])
    view = native(lambda x: (x.relu(), x[1:]), x)
    assert view.caller([None], [(0, 0)], tuple) is None  # Python makes the view


def test_capturing_does_not_disturb_the_random_numbers() -> None:
    inputs = block_inputs(0)
    graph, state = traced(block, *inputs), torch.get_rng_state()
    CapturedGraph.capture(graph, inputs, executor="native")
    assert torch.equal(torch.get_rng_state(), state)


def _has_sgemm() -> bool:
    return torch.backends.mkl.is_available()
