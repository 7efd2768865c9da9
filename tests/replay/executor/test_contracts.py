"""What the classes in C++ owe those who call them, asked of them one by one: recordings, quick calls, held kernels."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.executor import build
from npucompose.replay.operands import same_bytes
from tests.replay.capturing import traced

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def extension() -> ModuleType:
    return build.load()


def native(function: Any, *inputs: Any, **options: Any) -> CapturedGraph:
    captured = CapturedGraph.capture(traced(function, *inputs), list(inputs), executor="native", **options)
    assert captured.facts()["executor"] == "native", captured.facts()["executor_reason"]
    return captured


def added(extension: ModuleType, name: str, args: list[Any], direct: bool = True, recording: Any = None) -> str:
    op, _, overload = name.partition(".")
    made = recording or extension.Recording()
    return made.add(extension.Operator(f"aten::{op}", overload), args, {}, [], [], [], direct)


# Recordings.


def counting(extension: ModuleType, steps: int) -> tuple[Any, list[torch.Tensor]]:
    """A recording whose step k adds one to counter k."""
    recording, counters = extension.Recording(), [torch.zeros(1) for _ in range(steps)]
    for counter in counters:
        assert added(extension, "add_.Tensor", [counter, torch.ones(1), 1], False, recording) == "boxed"
    return recording, counters


def test_a_recording_is_run_as_often_as_is_asked_and_each_round_has_its_time(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    took = recording.took(4)
    assert [counter.item() for counter in counters] == [4.0] * 3
    assert len(took) == 4
    assert all(isinstance(ns, int) and 0 < ns < 10**12 for ns in took)
    assert recording.took(0) == []


def test_the_span_of_each_step_lies_within_its_round_and_after_the_step_before(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    rounds = recording.spans(5)
    assert [counter.item() for counter in counters] == [5.0] * 3
    assert [len(spans) for spans in rounds] == [3] * 5
    for spans in rounds:
        instants = [instant for span in spans for instant in span]
        assert instants == sorted(instants)
        assert 0 <= instants[0] <= instants[-1] < 10**11, "counted from the begin of the round"


def test_steps_that_are_timed_run_and_no_others(extension: ModuleType) -> None:
    recording, counters = counting(extension, 3)
    times = recording.times([2, 0, 2], 4)
    assert [counter.item() for counter in counters] == [4.0, 0.0, 8.0]
    assert len(times) == 4
    assert all(0 < ns < 10**12 for ns in times)
    with pytest.raises(IndexError):
        recording.times([3], 1)


@pytest.mark.parametrize(
    ("threads", "waits", "words"),
    [
        ([[0, 1], [2]], [[], [], [1]], None),
        ([[0, 2], [1]], [[], [], [1]], None),
        ([[], [0, 1, 2]], [[], [0], [0, 1]], None),
        ([[1, 0], [2]], [[], [], []], "step 0 is out of order"),
        ([[0, 0], [1, 2]], [[], [], []], "step 0 is out of order"),
        ([[0], [1, 2]], [[], [1], []], "step 1 would wait for step 1, which comes only after it"),
        ([[0], [1, 2]], [[2], [], []], "step 0 would wait for step 2"),
    ],
)
def test_turns_of_threads_are_in_order_and_wait_for_what_came_before(
    extension: ModuleType, threads: Any, waits: Any, words: str | None
) -> None:
    recording, counters = counting(extension, 3)
    if words is not None:
        with pytest.raises(RuntimeError, match=words):
            recording.set_streams(threads, waits, [], 0, [])
        return
    recording.set_streams(threads, waits, [], 1000, [])
    for rounds in (1, 2, 3):
        recording.took(1)
        assert [counter.item() for counter in counters] == [float(rounds)] * 3


def test_a_step_waits_for_its_event_from_the_first_replay_on(extension: ModuleType) -> None:
    """The step that is waited for takes its time; without a second core all steps run one after the other."""

    def late_one(x: torch.Tensor) -> None:
        time.sleep(0.05)
        x.add_(1)

    with torch.library._scoped_library("npucompose_contracts", "FRAGMENT") as library:
        library.define("late(Tensor(a!) x) -> ()")
        library.impl("late", late_one, "CPU")
        recording, x, y = extension.Recording(), torch.zeros(1), torch.zeros(1)
        late = extension.Operator("npucompose_contracts::late", "")
        recording.add(late, [x], {}, [], [], [], False)
        added(extension, "add_.Tensor", [y, x, 1], False, recording)
        recording.set_streams([[0], [1]], [[], [0]], [], 1000, [])
        for total in (1.0, 3.0, 6.0):
            recording.took(1)
            assert y.item() == total


def test_an_input_that_moves_takes_its_steps_along_and_no_other_does(
    extension: ModuleType,
) -> None:
    recording = extension.Recording()
    x, out = torch.arange(8.0), torch.empty(4)
    part = torch.empty(0).set_(x.untyped_storage(), 2, (4,))  # type: ignore[call-overload]
    recording.set_input(3, part)
    added(extension, "add.out", [part, torch.ones(4), 1, out], False, recording)
    recording.took(1)
    assert out.tolist() == [3.0, 4.0, 5.0, 6.0]
    other = torch.arange(100.0, 104.0)
    recording.move(3, other.data_ptr())
    recording.took(1)
    assert out.tolist() == [101.0, 102.0, 103.0, 104.0]
    recording.move(7, x.data_ptr())
    recording.took(1)
    assert out.tolist() == [101.0, 102.0, 103.0, 104.0]
    recording.move(3, x.data_ptr())  # for the end: the tensor frees what it lies over


def test_a_list_of_results_has_as_many_as_when_it_was_captured(extension: ModuleType) -> None:
    recording = extension.Recording()
    x = torch.arange(4.0)
    split = extension.Operator("aten::split_copy", "Tensor")
    for numbers, fits in (([0, 1], True), ([0, 1, 2], False)):
        recording = extension.Recording()
        recording.add(split, [x, 2, 0], {}, [numbers], [], [], True)
        if fits:
            recording.took(1)
            continue
        with pytest.raises(RuntimeError, match="was captured with 3 results and now returns 2"):
            recording.took(1)


def test_a_number_where_a_tensor_is_wanted_takes_the_part_of_a_number(extension: ModuleType) -> None:
    for number, dtype in ((2, torch.float32), (2.5, torch.float32), (True, torch.float32)):
        x, out = torch.ones(3), torch.empty(3)
        recording = extension.Recording()
        added(extension, "mul.out", [x, number, out], False, recording)
        recording.took(1)
        assert same_bytes(out, (x * number).to(dtype))


# Which kernels run without the dispatcher.


class Asked(TorchDispatchMode):
    """How often an operator is called meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.count = name, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) == f"aten.{self.name}"
        return func(*args, **(kwargs or {}))


def asked(extension: ModuleType, name: str, args: list[Any]) -> int:
    """How often the operator itself was run for the trial of its kernel."""
    with Asked(name) as mode:
        added(extension, name, args)
    return mode.count


NEW_SIZES = itertools.count(37)
"""Trials are remembered as long as the process lives."""


def test_a_trial_is_made_once_for_calls_that_differ_in_the_values_of_tensors_alone(extension: ModuleType) -> None:
    n = next(NEW_SIZES)

    def call(**other: Any) -> list[int]:
        shape, dtype = other.get("shape", (3, n)), other.get("dtype", torch.float32)

        def made() -> torch.Tensor:
            tensor = torch.randn(*shape).to(dtype)
            return tensor.t().contiguous().t() if "turned" in other else tensor

        op, alpha, out = other.get("op", "add.out"), other.get("alpha", 1), torch.empty(*shape, dtype=dtype)
        return [asked(extension, op, [made(), made(), alpha, out]) for _ in range(2)]

    # After the first: other rows, another rank, another dtype, layout, kind of number, number and operator.
    others: list[dict[str, Any]] = [
        {}, {"shape": (5, n)}, {"shape": (3 * n,)}, {"dtype": torch.float64}, {"turned": True}, {"alpha": 1.0},
        {"alpha": 2}, {"alpha": 2.5}, {"alpha": 2.25}, {"op": "sub.out"},
    ]  # fmt: skip
    found = [call(**other) for other in others]
    assert [second for _, second in found] == [0] * len(others), "equal calls are not tried again"
    assert [first > 0 for first, _ in found] == [True] * len(others), "and others are"
    torch.set_num_threads(2)
    assert call()[0] > 0, "another number of threads is another kernel"


def test_a_trial_compares_three_rounds(extension: ModuleType) -> None:
    x = torch.randn(7, next(NEW_SIZES))
    assert asked(extension, "mul.out", [x, x.clone(), torch.empty_like(x)]) == 3


class Operands(TorchDispatchMode):
    """Copies of what products are given meanwhile, their results' memory too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten.mul.out":
            self.seen += [tensor.clone() for tensor in (*args, *(kwargs or {}).values())]
        return func(*args, **(kwargs or {}))


def test_a_trial_is_made_on_other_numbers_for_each_operand_and_round(extension: ModuleType) -> None:
    x = torch.zeros(next(NEW_SIZES), 3)
    with Operands() as mode:
        added(extension, "mul.out", [x, x.clone(), torch.empty_like(x)])
    assert len(mode.seen) == 9
    assert len({tuple(tensor.flatten().tolist()) for tensor in mode.seen}) == 9
    for tensor in mode.seen:
        assert tensor.isfinite().all()
        assert tensor.unique().numel() > 100, "of the normal distribution"


class Wrong(TorchDispatchMode):
    """Products come out wrong meanwhile: their kernels cannot have the operator's bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) == "aten.mul.out":
            result.add_(1)
        return result


@pytest.mark.parametrize("size", [17, 70_001, 140_001])  # of one round of the trial's noise, and of more
def test_a_kernel_with_other_bits_than_the_operators_is_not_used(extension: ModuleType, size: int) -> None:
    for mode, way in ((Wrong(), "boxed"), (Asked("mul.out"), "held")):
        x = torch.randn(size + next(NEW_SIZES))
        with mode:
            assert added(extension, "mul.out", [x, x.clone(), torch.empty_like(x)]) == way


MATRICES: dict[str, tuple[Any, bool]] = {
    "as they are": (lambda: (torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)), True),
    "x turned": (lambda: (torch.randn(7, 5).t(), torch.randn(7, 6), torch.empty(5, 6)), True),
    "y turned": (lambda: (torch.randn(5, 7), torch.randn(6, 7).t(), torch.empty(5, 6)), True),
    "both turned": (lambda: (torch.randn(7, 5).t(), torch.randn(6, 7).t(), torch.empty(5, 6)), True),
    "columns of larger ones": (
        lambda: (torch.randn(5, 9)[:, 1:8], torch.randn(7, 9)[:, 2:8], torch.empty(5, 8)[:, :6]), True
    ),
    "every other column": (lambda: (torch.randn(5, 14)[:, ::2], torch.randn(7, 6), torch.empty(5, 6)), False),
    "rows that overlap": (
        lambda: (torch.randn(40).as_strided((5, 7), (3, 1)), torch.randn(7, 6), torch.empty(5, 6)), False
    ),
    "a result by columns": (lambda: (torch.randn(5, 7), torch.randn(7, 6), torch.empty(6, 5).t()), False),
    "in double": (lambda: (torch.randn(5, 7).double(), torch.randn(7, 6).double(), torch.empty(5, 6).double()), False),
    "empty": (lambda: (torch.randn(0, 7), torch.randn(7, 6), torch.empty(0, 6)), False),
}  # fmt: skip


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch's BLAS is not MKL")
@pytest.mark.parametrize("layout", MATRICES)
def test_a_product_calls_blas_where_fortran_can_read_the_matrices(extension: ModuleType, layout: str) -> None:
    make, fits = MATRICES[layout]
    x, y, out = make()
    recording = extension.Recording()
    assert (added(extension, "mm.out", [x, y, out], True, recording) == "blas") is fits
    recording.took(1)
    assert same_bytes(out, torch.mm(x, y)) or torch.equal(out, torch.mm(x, y))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch's BLAS is not MKL")
@pytest.mark.parametrize(
    ("row", "beta", "alpha", "fits"),
    [
        (lambda: torch.randn(6), 1, 1, True),
        (lambda: torch.randn(6), 1.0, 1.0, True),
        (lambda: torch.randn(6), 2, 1, False),
        (lambda: torch.randn(6), 1, 2, False),
        (lambda: torch.randn(12)[::2], 1, 1, False),
        (lambda: torch.randn(1).expand(6), 1, 1, False),
        (lambda: torch.randn(5, 6), 1, 1, False),
        (lambda: torch.randn(5, 1), 1, 1, False),
        (lambda: torch.randn(1), 1, 1, False),
    ],
)
def test_a_product_with_a_row_calls_blas_where_the_row_lies_as_one(
    extension: ModuleType, row: Any, beta: Any, alpha: Any, fits: bool
) -> None:
    a, x, y, out = row(), torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    recording = extension.Recording()
    assert (added(extension, "addmm.out", [a, x, y, beta, alpha, out], True, recording) == "blas") is fits
    recording.took(1)
    assert torch.equal(out, torch.addmm(a, x, y, beta=beta, alpha=alpha))


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda: (torch.randn(9), torch.randn(9)), True),
        (lambda: (torch.randn(9).double(), torch.randn(9).double()), True),
        (lambda: (torch.randn(9), torch.randn(9).double()), False),
        (lambda: (torch.arange(9), torch.arange(9)), False),
        (lambda: (torch.randn(9)[:0], torch.randn(9)[:0]), False),
        (lambda: (torch.randn(9, dtype=torch.cfloat).conj(), torch.randn(9, dtype=torch.cfloat)), False),
        (lambda: (torch.randn(9).bfloat16(), torch.randn(()).bfloat16()), False),
    ],
)
def test_kernels_over_elements_are_held_for_one_floating_dtype_with_elements(
    extension: ModuleType, make: Any, held: bool
) -> None:
    x, y = make()
    out = torch.empty_like(x * y)
    recording = extension.Recording()
    assert (added(extension, "mul.out", [x, y, out], True, recording) == "held") is held
    assert added(extension, "mul.out", [x, y, out], False) == "boxed"
    recording.took(1)
    assert torch.equal(out, x * y)


class Counted(TorchDispatchMode):
    """How many operators were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_kernel_is_tried_once_for_each_form_of_its_arguments(extension: ModuleType) -> None:
    """Every argument of the form counts: what stands before a text, and the text."""
    contiguous, strided, out = torch.randn(9137), torch.randn(9137, 2)[:, 0], torch.empty(9137)

    def is_tried(x: torch.Tensor, approximate: str) -> bool:
        with Counted() as counted:
            assert added(extension, "gelu.out", [x, approximate, out], True) == "held"
        return counted.calls > 0

    forms = [(contiguous, "none"), (contiguous, "tanh"), (strided, "none"), (strided, "tanh")]
    assert [is_tried(*form) for form in (*forms, *forms)] == [True] * 4 + [False] * 4


# Quick calls.


def caller(captured: CapturedGraph, held: list[Any], taken: Any, kind: Any = tuple, **more: Any) -> Any:
    call = captured.caller(held, taken, kind, **more)
    assert call is not None
    return call


def test_a_quick_call_does_nothing_for_any_other_form_of_its_arguments() -> None:
    x = torch.ones(2, 3)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)])
    assert call((torch.zeros(2, 3),))[0].tolist() == [[1.0] * 3] * 2
    for wrong in (
        (), (x, x), (None,), (3,), (x.double(),), (x[0],), (x.reshape(3, 2),), (torch.ones(2, 4),), (torch.ones(4, 3),),
        (torch.ones(3, 2).t(),), (torch.ones(2, 6)[:, ::2],), (torch.ones(1, 2, 3),), (x.to("meta"),),
        (torch.nn.Parameter(x).view_as(x).as_subclass(type("Mine", (torch.Tensor,), {})),),
        (torch._neg_view(x),),  # pyright: ignore[reportPrivateImportUsage]
    ):  # fmt: skip
        assert call(wrong) is None
    assert call((torch.nn.Parameter(x, requires_grad=False),))[0].tolist() == [[2.0] * 3] * 2
    cut = torch.ones(2, 3)
    cut.untyped_storage().resize_(4)
    assert call((cut,)) is None
    assert call((torch.ones(4, 3)[2:],))[0].tolist() == [[2.0] * 3] * 2


def test_arguments_reach_the_inputs_they_are_taken_for() -> None:
    a, b, c = torch.full((2,), 1.0), torch.full((2,), 10.0), torch.full((2,), 100.0)
    captured = native(lambda a, b, c: (a + b * 2 + c * 3,), a, b, c)
    call = caller(captured, [None, b, None], [(0, 1), (2, 0)], 0)
    assert call((torch.full((2,), 5.0), torch.full((2,), 7.0))).tolist() == [7.0 + 20.0 + 15.0] * 2
    with pytest.raises(RuntimeError, match="there is no input 3"):
        captured.caller([None, b, None], [(3, 0)], tuple)


def test_a_number_among_the_inputs_is_the_one_it_was() -> None:
    x, number = torch.ones(2), 1234567
    captured = native(lambda x, n: (x + n,), x, number)
    assert caller(captured, [None, number], [(0, 0)], 0)((x,)).tolist() == [1234568.0] * 2
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    assert call((x, number)).tolist() == [1234568.0] * 2
    assert call((x, 7)) is None
    assert call((x, x)) is None


def test_a_quick_call_is_made_in_the_mode_it_was_made_for() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)], 0)
    modes: list[Any] = [torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)]
    for mode in modes:
        with mode:
            assert call((x,)) is None
    with torch.autocast("cpu", torch.bfloat16):
        inside = caller(captured, [None], [(0, 0)], 0)
        assert inside((x,)).tolist() == [2.0, 2.0]
        with torch.autocast("cpu", torch.float16):
            assert inside((x,)) is None
    assert inside((x,)) is None
    assert call((x,)).tolist() == [2.0, 2.0]
    with torch.inference_mode():
        made = caller(captured, [None], [(0, 0)], 0)((x,))
        assert made.is_inference()
    assert not call((x,)).is_inference()


def test_under_grad_tensors_that_want_gradients_are_left_to_python() -> None:
    x, w = torch.ones(2), torch.ones(2)
    captured = native(lambda x, w: (x + w,), x, w)
    wanting = torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        call = caller(captured, [None, w], [(0, 0)], 0)
        assert call((x,)).tolist() == [2.0, 2.0]
        assert call((wanting,)) is None
        assert call((3,)) is None
        assert caller(captured, [None, wanting], [(0, 0)], 0)((x,)) is None
    assert caller(captured, [None, wanting], [(0, 0)], 0)((x,)).tolist() == [2.0, 2.0]
    assert caller(captured, [None, w], [(0, 0)], 0)((wanting,)).tolist() == [2.0, 2.0]


def test_an_entry_that_is_no_longer_so_leaves_the_call_to_python() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    first, second = {"w": x}, {"v": x}
    call = caller(captured, [None], [(0, 0)], 0, entries=[(first, "w", x), (second, "v", x)])
    assert call((x,)).tolist() == [2.0, 2.0]
    for owner, name in ((first, "w"), (second, "v")):
        owner[name] = x.clone()
        assert call((x,)) is None
        del owner[name]
        assert call((x,)) is None
        owner[name] = x
        assert call((x,)).tolist() == [2.0, 2.0]


def test_what_is_written_counts_one_version_and_what_is_read_none() -> None:
    state, x = torch.zeros(2), torch.ones(2)
    captured = native(lambda state, x: (state.add_(x), x * 2)[1:], state, x)
    call = caller(captured, [None, None], [(0, 0), (1, 1)])
    for replay in (lambda: call((state, x)), lambda: captured.replay(state, x)):
        versions = state._version, x._version
        replay()
        assert (state._version, x._version) == (versions[0] + 1, versions[1])
    assert state.tolist() == [2.0, 2.0]
    with torch.inference_mode():
        inside = torch.zeros(2)
    assert call((inside, x))[0].tolist() == [2.0, 2.0]
    assert inside.tolist() == [1.0, 1.0]


def test_a_written_input_may_meet_no_other_and_read_ones_may_meet() -> None:
    captured = native(lambda a, b: (a.add_(1), b * 2)[1:], torch.zeros(3), torch.zeros(3))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    buffer = torch.arange(6.0)
    for begin in (0, 1, 2):
        assert call((buffer[:3], buffer[begin : begin + 3])) is None
        assert call((buffer[begin : begin + 3], buffer[:3])) is None
    assert buffer.tolist() == list(range(6)), "with nothing done"
    assert call((buffer[:3], buffer[3:])).tolist() == [6.0, 8.0, 10.0], "side by side is apart"
    assert call((buffer[3:], buffer[:3])).tolist() == [2.0, 4.0, 6.0]
    reading = native(lambda a, b: (a + b,), torch.zeros(3), torch.zeros(3))
    both = caller(reading, [None, None], [(0, 0), (1, 1)], 0)
    buffer = torch.arange(6.0)
    assert both((buffer[:3], buffer[1:4])).tolist() == [1.0, 3.0, 5.0]
    assert both((buffer[:3], buffer[:3])).tolist() == [0.0, 2.0, 4.0]


def test_an_input_of_a_fixed_place_is_taken_there_alone() -> None:
    w, x = torch.ones(2), torch.ones(2)
    captured = native(lambda w, x: (w + x,), w, x, static=frozenset({0}))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    assert call((w, torch.full((2,), 4.0))).tolist() == [5.0, 5.0]
    assert call((w.clone(), x)) is None
    assert call((w.detach(), x)).tolist() == [2.0, 2.0], "the place counts, not the object"


def test_inputs_of_more_than_a_megabyte_are_read_wherever_they_come_from() -> None:
    size = 1 << 19  # two megabytes
    captured = native(lambda x, n: (x[:3] + n,), torch.zeros(size), 7)
    call = caller(captured, [None, 7], [(0, 0)], 0)
    for value in (1.0, 2.0, 3.0):
        assert call((torch.full((size,), value),)).tolist() == [value + 7] * 3
    assert call((torch.zeros(5),)) is None


def test_a_result_that_is_held_is_overwritten_for_those_alone_who_asked_for_it_and_were_given_it() -> None:
    x = torch.ones(4)
    captured = native(lambda x: (x + 1,), x)
    keeping, reusing = (caller(captured, [None], [(0, 0)], 0, reuse=reuse) for reuse in (False, True))

    def full(value: float) -> tuple[torch.Tensor]:
        return (torch.full((4,), value),)

    kept = [keeping(full(value)) for value in (0.0, 1.0)]
    lent = reusing(full(2.0))
    assert [one.tolist() for one in (*kept, lent)] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = reusing(full(3.0))
        third = reusing(full(4.0))
    assert len(said) == 1
    assert "is still held, and this call overwrites it" in str(said[0].message)
    assert lent.data_ptr() == again.data_ptr() == third.data_ptr()
    assert lent.tolist() == [5.0] * 4
    assert [one.tolist() for one in kept] == [[1.0] * 4, [2.0] * 4]
    fed = reusing((third,))  # it comes back as an input: it is read before anything is written
    assert fed.tolist() == [6.0] * 4
    assert third.tolist() == [5.0] * 4
    mine = keeping(full(8.0))
    assert (fed.tolist(), mine.tolist()) == ([6.0] * 4, [9.0] * 4)


def holders(result: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(result.untyped_storage()._cdata)


def test_memory_that_was_left_is_kept_for_a_while_and_given_back_when_nothing_is_held_for_long() -> None:
    x = torch.ones(4)
    call = caller(native(lambda x: (x + 1,), x), [None], [(0, 0)], 0)
    held = call((x,))
    call((x,))  # leaves the memory of `held`
    known = holders(held)
    for _ in range(63):
        call((x,))
    assert holders(held) == known, "it may come back"
    call((x,))
    assert holders(held) == known - 1, "nobody else has it now"
    assert held.tolist() == [2.0] * 4


def test_two_results_that_are_held_in_turns_come_back_to_their_memory() -> None:
    x = torch.ones(4)
    call = caller(native(lambda x: (x + 1,), x), [None], [(0, 0)], 0)
    one, other = call((x,)), call((x,))
    places = {one.data_ptr(), other.data_ptr()}
    del one
    third = call((x,))
    assert third.data_ptr() in places
    assert third.data_ptr() != other.data_ptr()


def test_nobody_is_warned_where_nothing_is_held_and_a_result_that_is_any_input_is_left_alone() -> None:
    x, zero = torch.ones(4), torch.zeros(4)
    call = caller(native(lambda x, y: (x + y + 1,), x, zero), [None, None], [(0, 0), (1, 1)], 0, reuse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places = {call((x, zero)).data_ptr() for _ in range(4)}
        assert len(places) == 1, "what nobody holds is taken again"
        for given in (lambda fed: (fed, zero), lambda fed: (zero, fed)):
            fed = call((x, zero))
            result = call(given(fed))
            assert (fed.tolist(), result.tolist()) == ([2.0] * 4, [3.0] * 4)
            assert fed.data_ptr() != result.data_ptr()
            del fed, result


def test_a_quick_call_sees_no_onlookers_and_no_replay_within_its_own() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)], 0)
    with Asked("add.Tensor") as mode:
        assert call((x,)) is None
        assert captured.try_replay([x]) is None
    assert mode.count == 0
    assert call((x,)).tolist() == [2.0, 2.0]


def test_empty_inputs_need_no_memory_and_have_their_form() -> None:
    captured = native(lambda x, y: (x.sum() + y,), torch.ones(0, 3), torch.ones(2))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    y = torch.full((2,), 3.0)
    assert call((torch.ones(0, 3), y)).tolist() == [3.0, 3.0]
    assert call((torch.ones(0, 4), y)) is None
    assert call((torch.ones(2)[:0], y)) is None
