"""Recordings with collectives, on two ranks that really exchange data: bits, order, memory, and a rank that is gone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import fx

from npucompose.graphs import Dependence
from npucompose.graphs.effects import facts
from npucompose.schema.streams import Streams
from npucompose.streams import apply, validate
from npucompose_replay.capture.recorder import record, record_call
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.gate import Refused
from npucompose_replay.plan import Plan, Step, Threads, Workers
from tests.collectives.ranks import STEPS, Steps, inputs_of, on_both, program, two_ranks
from tests.graph_helpers import one_thread, same
from tests.sample_graphs import CAN, Program, aten
from tests.searches import examples

ASIDE = Streams(objective="streams", cost="none", max_streams=3, min_gain=0)
MLP: Steps = [
    ("mm", 0, 1), ("all_reduce", 2, 0), ("all_gather", 0, 0), ("tanh", 1, 0), ("mm", 3, 0), ("reduce_scatter", 4, 2),
    ("wait", 1, 0), ("all_to_all", 1, 0), ("wait", 0, 0), ("coalesced", 0, 1), ("broadcast", 2, 0),
    ("all_reduce_", 4, 0), ("write", 5, 1), ("mm", 5, 6), ("wait", 0, 0),
]  # fmt: skip


def planned(steps: Steps, group: str, wanted: Streams = ASIDE) -> fx.GraphModule:
    module = program(steps, group)
    before = Dependence.from_graph(module.graph)
    apply(module.graph, wanted, CAN)
    validate(module.graph, before)
    return module


def replays_agree(steps: Steps, executor: Any, times: int) -> set[str]:
    """Whether recordings of both ranks give what the graph gives; who replayed."""
    with two_ranks() as groups:

        def one(rank: int) -> str:
            module, plain = planned(steps, groups[rank]), program(steps, groups[rank])
            captured = CapturedGraph.capture(module, inputs_of(rank, 0), executor=executor, workers=Workers(count=3))
            for seed in range(times):
                got = captured.replay(*inputs_of(rank, seed))
                assert same(got, fx.Interpreter(plain).run(*inputs_of(rank, seed))), f"rank {rank}, replay {seed}"
            return captured.executor.name

        return set(on_both(one))


@settings(max_examples=examples(12), deadline=None)
@given(STEPS)
def test_whatever_the_plan_both_ranks_replay_the_bits_of_the_graph(steps: Steps) -> None:
    with one_thread():
        assert replays_agree(steps, "native", 3) == {"native"}


@pytest.mark.parametrize("executor", ["torchscript", "python"])
def test_replayers_without_a_compiler_wait_for_collectives_too(executor: str) -> None:
    assert replays_agree(MLP, executor, 5) == {"python"}


def test_twenty_replays_of_a_plan_on_three_threads_are_the_graph_s_bits() -> None:
    with one_thread():
        assert replays_agree(MLP, "native", 20) == {"native"}


def recorded(steps: Steps, planned: Callable[[Steps, str], fx.GraphModule] = planned) -> list[Plan]:
    with two_ranks() as groups:
        return on_both(lambda rank: record(planned(steps, groups[rank]), inputs_of(rank, 0)))


def test_collectives_are_issued_in_the_program_s_order_whatever_threads_they_are_on() -> None:
    wanted = [node.name for node in program(MLP, "").graph.nodes if facts_of(node).collective]
    for plan in recorded(MLP):
        issued = [number for number, step in enumerate(plan.steps) if facts(step.op).collective]
        assert [plan.steps[number].name for number in issued] == wanted
        threads = Threads.from_plan(plan, 3)
        assert all(threads.orders(first, then) for first, then in pairwise(issued))


def facts_of(node: fx.Node) -> Any:
    return facts(node.target) if isinstance(node.target, torch._ops.OpOverload) else facts(aten.neg.default)


def test_what_a_collective_reads_stays_until_it_was_waited_for() -> None:
    steps: Steps = [("tanh", 0, 0), ("all_gather", 2, 0), ("tanh", 1, 0), ("mm", 3, 1), ("wait", 0, 0)]
    for plan in recorded(steps, planned=program):
        launch = next(step for step in plan.steps if facts(step.op).collective)
        wait = next(step for step in plan.steps if facts(step.op).waits)
        (read,) = (operand for operand in launch.operands)
        assert wait.reads == (read,)
        assert plan.root_of(read).last == plan.steps.index(wait) > plan.steps.index(launch) + 1


def test_a_step_that_waits_for_nothing_reads_nothing_more() -> None:
    assert Step(op=aten.neg.default, args=()).reads == ()


def test_a_collective_that_nothing_waits_for_is_refused_by_name_and_runs_once() -> None:
    with two_ranks() as groups:

        def one(rank: int) -> None:
            made = Program(inputs=1)
            zeros = made.call(aten.zeros_like.default, made.values[0])
            flying = made.call(torch.ops._c10d_functional.all_reduce.default, made.values[0], "sum", groups[rank])
            module = made.finish([flying, made.call(aten.add_.Tensor, zeros, 2)])
            with pytest.raises(Refused, match=r"all_reduce.*nothing in the graph waits for its result") as refused:
                record_call(module, [torch.ones(4, 4)], finish=True)
            result, other = refused.value.outputs or ()
            torch.ops._c10d_functional.wait_tensor(result)
            assert same([result, other], [torch.full((4, 4), 2.0)] * 2)

        on_both(one)
