"""The floor measures the recording's kernels on the values of a real replay, however often it runs some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks import floor as floors
from benchmarks.floor import Floor, StepTime, by_operator
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.memory.arena import Memory
from replay_tests.test_generated_code import Code
from tests.graph_helpers import traced


def rounds(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for _ in range(4):
        x = torch.relu(x @ w) * 0.9
    return (x,)


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 8), torch.randn(8, 8)]


@pytest.fixture
def captured(inputs: list[torch.Tensor]) -> CapturedGraph:
    return CapturedGraph.capture(traced(rounds, *inputs), inputs, executor="native")


def values(memory: Memory) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in memory.tensors]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_measuring_changes_no_value_of_the_replay(captured: CapturedGraph, inputs: list[torch.Tensor]) -> None:
    floor = Floor(captured, inputs)
    before = values(floor._memories[0])
    assert floor.microseconds(rounds=2, row_ns=1e5) > 0
    assert same(values(floor._memories[0]), before)


def test_in_a_pool_that_is_reused_it_would(captured: CapturedGraph, inputs: list[torch.Tensor]) -> None:
    memory = Memory.from_plan(captured.plan)
    native = Native(build.load(), captured.plan, memory)
    for index, value in enumerate(inputs):
        native.move(index, value)
    native.recording.times(list(range(len(native.ways))), 1)
    before = values(memory)
    native.recording.times([i for i, step in enumerate(captured.plan.steps) if "mm" in str(step.op)], 2)
    assert not same(values(memory), before)


def test_the_callers_tensors_are_neither_written_nor_held(inputs: list[torch.Tensor]) -> None:
    def count(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total.add_(x)
        return (total @ x,)

    captured = CapturedGraph.capture(traced(count, *inputs), inputs, executor="native")
    before = [x.clone() for x in inputs]
    Floor(captured, inputs).microseconds(rounds=2, row_ns=1e5)
    assert same(inputs, before)


def test_every_step_is_timed_in_the_way_it_runs_and_through_the_dispatcher(
    captured: CapturedGraph, inputs: list[torch.Tensor]
) -> None:
    steps = Floor(captured, inputs).steps(rounds=2)
    assert [step.operator for step in steps] == [str(s.op).removeprefix("aten.") for s in captured.plan.steps]
    assert all(step.direct_ns > 0 and step.boxed_ns > 0 for step in steps)
    summed = by_operator(steps)
    assert {name: (count, way) for name, (count, way, _, _) in summed.items()} == {
        "mm.out": (4, steps[0].way),
        "clamp_min.out": (4, "held"),
        "mul.out": (4, "held"),
    }
    assert [total for _, _, total, _ in summed.values()] == sorted(
        (total for _, _, total, _ in summed.values()), reverse=True
    )


def test_a_kernel_runs_by_itself_although_another_one_made_its_operand() -> None:
    def convolved(x: torch.Tensor, kernel: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.conv1d(x, kernel)[0] @ w,)

    inputs = [torch.randn(1, 4, 8), torch.randn(4, 4, 1), torch.randn(8, 8)]
    captured = CapturedGraph.capture(traced(convolved, *inputs), inputs, executor="native")
    assert any(step.results for step in captured.plan.steps)  # handed on, without memory in the plan
    assert Floor(captured, inputs).microseconds(rounds=2, row_ns=1e5) > 0


def test_every_value_is_what_a_whole_replay_left(captured: CapturedGraph, inputs: list[torch.Tensor]) -> None:
    floor = Floor(captured, inputs)
    (expected,) = rounds(*inputs)
    assert any(value.shape == expected.shape and torch.equal(value, expected) for value in values(floor._memories[0]))


def test_what_reads_much_outside_of_the_pool_is_cold_and_other_kernels_are_not() -> None:
    large, small = torch.randn(128, 128), torch.randn(128)  # 64 KiB, and less

    def body(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (((x * large) + small).exp() * large,)

    x = torch.randn(128, 128)
    for given, cold in ((x, [True, False, False, True]), (x[:1], [True, False, False, True])):
        steps = CapturedGraph.capture(traced(body, given), [given], executor="native").plan.steps
        assert [floors._is_cold(step) for step in steps] == cold, [str(step.op) for step in steps]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("columns", "cold"), [(256, True), (8, False)])
def test_a_packed_weight_is_outside_too(columns: int, cold: bool) -> None:
    x = torch.randn(4, 64)
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(columns, 64), 4)
    product = torch.ops.mkldnn._linear_pointwise
    code = Code(lambda inputs, observer: [product(inputs[0], weight, None, "none", [], "")], {"weight": weight})
    captured, _ = CapturedGraph.capture_code(code, [x], finish=True, executor="native")
    assert [floors._is_cold(step) for step in captured.plan.steps] == [cold]


class Watched:
    """An executor that runs nothing: a step takes what `costs` says, a row the sum, and each order is noted."""

    costs: Sequence[float]
    made: list[Watched]

    def __init__(self, extension: Any, plan: Any, memory: Memory, **options: Any) -> None:
        self.memory, self.options = memory, options
        self.moved: list[int] = []
        self.asked: list[tuple[list[int], int]] = []
        self.ways = [f"way {i}" for i in range(len(plan.steps))]
        self.recording = self
        type(self).made.append(self)

    def move(self, index: int, value: torch.Tensor) -> None:
        assert isinstance(value, torch.Tensor)
        self.moved.append(index)

    def times(self, steps: list[int], rounds: int) -> list[float]:
        self.asked.append((list(steps), rounds))
        factor = 1.0 if self.options["direct"] else 3.0
        whole = factor * sum(self.costs[i] for i in steps)
        return [whole + step for step in range(rounds)]  # the median of so many is (rounds - 1) / 2 above the first


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    Watched.made = []
    Watched.costs = [1.0] * 12
    monkeypatch.setattr(floors, "Native", Watched)
    return Watched


OTHERS = [1, 2, 4, 5, 7, 8, 10, 11]
PRODUCTS = [0, 3, 6, 9]


def costs(product: float, other: float) -> list[float]:
    return [product if i in PRODUCTS else other for i in range(12)]


def test_products_are_timed_in_a_row_and_every_other_kernel_alone(
    watched: type[Watched], captured: CapturedGraph, inputs: list[torch.Tensor]
) -> None:
    watched.costs = costs(1e6, 50_000.0)
    floor = Floor(captured, inputs)
    (native,) = watched.made
    assert native.options == {"direct": True, "keep_results": True}
    assert native.moved == [0, 1]
    assert native.asked == [(list(range(12)), 2)]
    native.asked.clear()
    assert floor.microseconds(rounds=3, row_ns=40e6) == (4e6 + 4.5 + 8 * (50_000 + 1)) / 1e3
    alone = [([i], count) for i in OTHERS for count in (1, 3)]
    assert native.asked == [(PRODUCTS, 1), (PRODUCTS, 10), *alone]


def test_without_being_told_a_row_takes_20_ms_and_a_kernel_runs_5_times(
    watched: type[Watched], captured: CapturedGraph, inputs: list[torch.Tensor]
) -> None:
    watched.costs = costs(5e5, 50_000.0)
    floor = Floor(captured, inputs)
    watched.made[0].asked.clear()
    floor.microseconds()
    assert watched.made[0].asked[:4] == [(PRODUCTS, 1), (PRODUCTS, 10), ([1], 1), ([1], 5)]
    watched.costs = costs(5e6, 50_000.0)
    watched.made[0].asked.clear()
    floor.microseconds()
    assert watched.made[0].asked[:2] == [(PRODUCTS, 1), (PRODUCTS, 5)]  # never fewer


def test_a_short_kernel_runs_16_times_between_two_looks_at_the_clock(
    watched: type[Watched], captured: CapturedGraph, inputs: list[torch.Tensor]
) -> None:
    watched.costs = [20_000.0, 19_999.0] + [1e6] * 10
    floor = Floor(captured, inputs)
    native: Any = watched.made[0]
    native.asked.clear()
    assert floor._alone(native, 0, 3) == 20_001.0
    assert floor._alone(native, 1, 3) == (16 * 19_999 + 1) / 16
    assert native.asked == [([0], 1), ([0], 3), ([1], 1), ([1] * 16, 3)]


def test_steps_are_timed_25_times_on_two_executors_that_share_no_memory(
    watched: type[Watched], captured: CapturedGraph, inputs: list[torch.Tensor]
) -> None:
    watched.costs = [50_000.0 + i for i in range(12)]
    floor = Floor(captured, inputs)
    steps = floor.steps()
    direct, boxed = watched.made
    assert boxed.options == {"direct": False, "keep_results": True}
    assert floor._memories == [direct.memory, boxed.memory]
    assert boxed.asked[0] == (list(range(12)), 2)
    assert direct.asked[-1] == ([11], 25)
    assert boxed.asked[-1] == ([11], 25)
    assert [step.way for step in steps] == [f"way {i}" for i in range(12)]
    assert [step.direct_ns for step in steps] == [50_012.0 + i for i in range(12)]
    assert [step.boxed_ns for step in steps] == [3 * (50_000.0 + i) + 12 for i in range(12)]


def test_a_recording_without_a_product_has_no_row(watched: type[Watched]) -> None:
    def doubled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2,)

    inputs = [torch.randn(4)]
    watched.costs = [30_000.0]
    floor = Floor(CapturedGraph.capture(traced(doubled, *inputs), inputs, executor="native"), inputs)
    assert floor.microseconds(rounds=1) == 30.0


def test_inputs_are_copied_with_their_strides_and_what_is_empty_or_no_tensor_stays_where_it_is(
    watched: type[Watched], captured: CapturedGraph
) -> None:
    given = [torch.randn(3, 2).t(), 7, torch.zeros(0), torch.ones(1)]
    floor = Floor(captured, given)
    kept = floor._inputs
    assert watched.made[0].moved == [0, 3]
    assert kept[1] == 7
    for copy, value in zip(kept, given, strict=True):
        if isinstance(value, torch.Tensor) and isinstance(copy, torch.Tensor):
            assert (torch.equal(copy, value), copy.stride()) == (True, value.stride())
            assert copy is not value


def test_steps_are_summed_by_operator_the_costliest_first() -> None:
    def step(operator: str, way: str, direct_ns: float, boxed_ns: float) -> StepTime:
        return StepTime(operator=operator, way=way, direct_ns=direct_ns, boxed_ns=boxed_ns)

    steps = [step("mul", "held", 1e3, 9e3), step("mm", "blas", 5e3, 6e3), step("mul", "boxed", 2e3, 2e3),
             step("mul", "held", 1e3, 1e3), step("add", "held", 9e3, 1e3)]  # fmt: skip
    assert list(by_operator(steps).items()) == [
        ("add", (1, "held", 9.0, 1.0)),
        ("mm", (1, "blas", 5.0, 6.0)),
        ("mul", (3, "held, boxed", 4.0, 12.0)),
    ]
