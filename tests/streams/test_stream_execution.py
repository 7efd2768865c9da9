"""Made-up inputs, runs on the CPU in any order, times of kernels, and what is left untouched by all of it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.schema.capabilities import Clocked
from npucompose.schema.streams import Streams
from npucompose.streams import cost, execute, made_up_inputs
from npucompose.streams.execute import ExampleInputs, Execution, isolated_run
from npucompose.streams.problem import Problem
from npucompose.streams.simulate import Work
from tests.sample_graphs import CAN, Program, aten, mm_abs_sub, names, node, traced

X = torch.randn(4, 4)


def placeholder(value: Any) -> fx.Graph:
    graph = fx.Graph()
    graph.placeholder("x").meta["val"] = value
    graph.output(())
    return graph


def fake(size: list[int], stride: list[int], dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty_strided(size, stride, dtype=dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=lambda d: str(d)[6:]
)
def test_numbers_are_made_up_around_zero(dtype: torch.dtype) -> None:
    (made,) = made_up_inputs(placeholder(fake([64, 32], [1, 64], dtype)))
    assert (made.dtype, made.shape, made.stride()) == (dtype, (64, 32), (1, 64))
    assert type(made) is torch.Tensor
    wide = made.to(torch.complex128)
    assert abs(complex(wide.mean())) < 0.1
    assert 0.8 < float(wide.abs().square().mean()) < 1.2


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=lambda d: str(d)[6:])
def test_whole_numbers_are_made_up_as_zeros_and_ones(dtype: torch.dtype) -> None:
    (made,) = made_up_inputs(placeholder(fake([64], [1], dtype)))
    assert made.dtype == dtype
    assert set(made.tolist()) == {0, 1}


def test_what_is_no_tensor_is_given_as_it_is_and_a_symbol_as_its_hint() -> None:
    assert made_up_inputs(placeholder(7)) == [7]
    assert made_up_inputs(placeholder(None)) == [None]
    module = traced(lambda x: x.exp(), torch.randn(5, 3), mode="symbolic")
    symbol = node(module.graph, "exp").meta["val"].shape[0]
    (given,) = made_up_inputs(placeholder(symbol))
    assert (given, type(given)) == (5, int)


def test_inputs_are_the_same_each_time_and_the_caller_s_random_numbers_untouched() -> None:
    graph = traced(mm_abs_sub, X).graph
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = made_up_inputs(graph), made_up_inputs(graph)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_each_input_has_values_of_its_own_in_the_graph_s_order() -> None:
    module = traced(lambda x, y: x + y[0], X, torch.randn(2, 4, 4))
    first, second = made_up_inputs(module.graph)
    assert (first.shape, second.shape) == ((4, 4), (2, 4, 4))
    assert not torch.equal(first, second[0])


def writer() -> fx.GraphModule:
    """Writes its second input through a view, reads the first."""
    program = Program(inputs=2)
    x, y = program.values
    program.call(aten.copy_.default, program.call(aten.view.default, y, [4, 4]), program.call(aten.neg.default, x))
    return program.finish([program.call(aten.abs.default, y)])


def test_what_the_graph_writes_is_a_copy_of_its_own_at_each_start() -> None:
    module = writer()
    inputs = ExampleInputs(module.graph, Dependence.from_graph(module.graph))
    once, again = inputs.start(), inputs.start()
    x, y = (node(module.graph, name) for name in ("x0", "x1"))
    assert list(once) == [x, y]
    assert once[x] is again[x]
    assert once[y] is not again[y]
    assert torch.equal(once[y], again[y])
    assert inputs.written(once) == [once[y]]
    once[y].zero_()
    assert torch.equal(inputs.start()[y], again[y])


def test_in_an_isolated_run_tensors_are_real_have_no_gradient_and_draw_nothing_of_the_caller_s() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    weight = torch.ones(1, requires_grad=True)
    with FakeTensorMode(), isolated_run():
        made = torch.rand(1)
        assert type(made) is torch.Tensor
        assert not (weight * 2).requires_grad
    assert torch.equal(torch.rand(1), expected)
    assert (weight * 2).requires_grad


def viewed() -> fx.GraphModule:
    """neg, a view of a view of it, and abs of that; a view that nobody reads stands beside."""
    program = Program(inputs=1)
    made = program.call(aten.neg.default, program.values[0])
    flat = program.call(aten.view.default, made, [16])
    again = program.call(aten.view.default, flat, [2, 8])
    program.call(aten.view.default, made, [8, 2])
    last = program.call(aten.abs.default, again)
    return program.finish([last, flat])


def begun(module: fx.GraphModule) -> tuple[Execution, dict[str, fx.Node]]:
    found = Dependence.from_graph(module.graph)
    execution = Execution(module.graph, found.kernels, ExampleInputs(module.graph, found).start())
    return execution, {one.name: one for one in module.graph.nodes}


def test_views_are_made_when_a_kernel_needs_them() -> None:
    module = viewed()
    execution, nodes = begun(module)
    execution.prepare(nodes["neg_default"])
    made = execution.run(nodes["neg_default"])
    execution.prepare(nodes["abs_default"])
    last = execution.run(nodes["abs_default"])
    assert torch.equal(last, made.view(2, 8).abs())
    first, second = execution.outputs()
    assert first is last
    assert torch.equal(second, made.view(16))
    assert nodes["view_default_2"] not in execution._values


def test_a_kernel_that_has_not_run_is_named() -> None:
    module = viewed()
    execution, nodes = begun(module)
    with pytest.raises(KeyError, match="neg_default"):
        execution.prepare(nodes["abs_default"])
    with pytest.raises(KeyError, match=r"neg_default|abs_default"):
        execution.outputs()


def test_each_run_draws_the_same_random_numbers() -> None:
    module = traced(lambda x: torch.rand_like(x) + x, X)
    drawn = []
    for _ in range(2):
        torch.rand(1)
        execution, nodes = begun(module)
        drawn.append(execution.run(nodes["rand_like"]))
    assert torch.equal(*drawn)
    torch.manual_seed(execute.SEED)
    assert torch.equal(drawn[0], torch.rand(4, 4))


def test_results_of_a_graph_are_flat_and_as_often_as_they_are_returned() -> None:
    program = Program(inputs=1)
    made = program.call(aten.neg.default, program.values[0])
    module = program.finish([made, program.values[0], made])
    execution, nodes = begun(module)
    value = execution.run(nodes["neg_default"])
    found = execution.outputs()
    assert [value is one for one in found] == [True, False, True]


def test_a_clock_gets_the_module_and_made_up_inputs() -> None:
    module, seen = traced(mm_abs_sub, X), []
    answer = Clocked(kernel_us={}, together_us={}, stream_us=1.0, event_us=2.0)

    def clock(module: Any, inputs: Any) -> Clocked:
        seen.append((module, [value.shape for value in inputs], torch.is_grad_enabled()))
        return answer

    assert cost.clocked(module.graph, clock) is answer
    assert seen == [(module, [(4, 4)], False)]
    loose = fx.Graph()
    loose.output(())
    assert cost.clocked(loose, clock) is None
    assert len(seen) == 1


MEASURED = Clocked(
    kernel_us={"mm": 4.0, "abs_1": 1.0, "sub": 2.0}, together_us={"mm": 3.0, "sub": 5.0}, stream_us=0.5, event_us=0.25
)


def test_the_work_of_each_kernel_is_what_the_clock_said_of_it() -> None:
    module = traced(mm_abs_sub, X)
    assert cost.work_of(MEASURED, Dependence.from_graph(module.graph)) == [
        Work(us=4.0, in_a_row_us=3.0, vector=1),
        Work(us=1.0, in_a_row_us=0.0, vector=1),
        Work(us=2.0, in_a_row_us=5.0, vector=1),
        Work(us=0.0, in_a_row_us=0.0, vector=1),
    ]


def test_a_problem_asks_the_clock_only_where_costs_are_measured() -> None:
    can = attrs.evolve(CAN, profiles=True, clock=lambda *_: MEASURED)
    graph = traced(mm_abs_sub, X).graph
    problem = Problem.from_graph(graph, Streams(cost="measured"), can)
    assert [item.us for item in problem.work] == [4.0, 1.0, 2.0, 0.0]
    assert (problem.model.stream_us, problem.model.event_us) == (0.5, 0.25)
    assert Problem.from_graph(graph, Streams(cost="roofline"), can).clocked is None
    without = attrs.evolve(can, profiles=False)
    with pytest.raises(PlanError) as caught:
        assert Problem.from_graph(graph, Streams(cost="measured"), without).work
    assert caught.value.code == "no_profile"


def test_a_kernel_s_time_is_the_shortest_round_after_the_one_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module = traced(mm_abs_sub, X)
    rounds: list[str] = []
    times = {
        "mm": [0.5, 9, 8, 7, 6, 7, 8, 9],
        "abs_1": [0.5, *[3] * 7],
        "sub": [9, 5, 4, 4, 4, 4, 4, 1],
        "add": [2] * 8,
    }

    def timed(execution: Execution, kernel: fx.Node) -> float:
        execution.run(kernel)
        rounds.append(kernel.name)
        return times[kernel.name][rounds.count(kernel.name) - 1]

    monkeypatch.setattr(cost, "_timed", timed)
    found = cost.measured(module.graph, Dependence.from_graph(module.graph))
    assert found == [Work(us=us, vector=1) for us in (6, 3, 1, 2)]
    assert rounds == ["mm", "abs_1", "sub", "add"] * (1 + cost.ROUNDS)


def test_one_call_is_timed_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1_000_000, 3_500_000])
    monkeypatch.setattr(cost, "perf_counter_ns", lambda: next(ticks))
    ran: list[object] = []

    class FakeExecution:
        def run(self, kernel: object) -> None:
            ran.append(kernel)

    assert cost._timed(FakeExecution(), "mm") == 2500.0  # type: ignore[arg-type]
    assert ran == ["mm"]


def test_a_graph_that_writes_its_inputs_is_timed_on_fresh_ones() -> None:
    module = writer()
    assert all(
        item.us > 0 and item.vector == 1 for item in cost.measured(module.graph, Dependence.from_graph(module.graph))
    )
    assert names(module.graph)[0] == "x0"


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        ((torch.ones(2), torch.zeros(2)), (torch.zeros(2), torch.ones(2)), False),
        (torch.arange(4).view(2, 2).t(), torch.tensor([[0, 2], [1, 3]]), True),  # by values, not by layout
        (3, 3, True),
        (3, 4, False),
        (None, None, True),
    ],
)
def test_a_checksum_tells_bits_apart(value: Any, other: Any, same: bool) -> None:
    assert (execute.checksum(value) == execute.checksum(other)) is same


def test_a_tensor_without_bytes_in_a_row_has_no_checksum_of_its_own() -> None:
    sparse = torch.eye(2).to_sparse()
    assert execute.checksum((torch.ones(1), sparse)) == execute.checksum(torch.ones(1))
    assert execute.checksum(sparse) is sparse
