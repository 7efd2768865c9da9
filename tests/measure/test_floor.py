"""The floor measures the recording's kernels on the values of a real replay, however often it runs some of them."""

from __future__ import annotations

import pytest
import torch

from npucompose.measure.floor import Floor, by_operator
from npucompose.targets.cpu.captured_graph import CapturedGraph
from npucompose.targets.cpu.memory import Memory
from npucompose.targets.cpu.native import build
from npucompose.targets.cpu.native.executor import Native
from tests.targets.capturing import traced


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
    memory = Memory.of(captured.plan)
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
