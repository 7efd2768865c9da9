"""Collectives are work on a link: what they take, what runs beside them, and what waits for them."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import is_collective
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of, plan
from npucompose.streams.cost import ResultSizes, on_link
from npucompose.streams.problem import Problem, schedule
from npucompose.streams.simulate import Simulation, Work, simulate
from npucompose.vendor.devices import ATLAS_A2, DeviceModel, cpu
from tests.collectives.ranks import on_both, program, two_ranks
from tests.sample_graphs import CAN, Program, aten

FREE = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=0.0, stream_us=0.0, collective_cores=0)
SENT = Work(us=6.0, link=True)
ops: Any = torch.ops._c10d_functional


def run(work: list[Work], streams: list[int] | None = None, model: DeviceModel = FREE, **events: Any) -> Simulation:
    return simulate(range(len(work)), streams or [0] * len(work), events.get("events", ()), work, model)


def test_a_stream_goes_on_while_the_link_works_and_who_waits_starts_when_it_is_done() -> None:
    found = run([SENT, Work(us=4.0), Work(us=0.0, awaits=(0,)), Work(us=1.0)])
    assert found == Simulation(start=[0.0, 0.0, 6.0, 6.0], end=[6.0, 4.0, 6.0, 7.0], makespan=7.0)


def test_a_wait_on_another_stream_needs_no_event_of_the_end() -> None:
    work = [SENT, Work(us=4.0), Work(us=0.0, awaits=(0,)), Work(us=1.0)]
    found = run(work, [0, 0, 1, 1], attrs.evolve(FREE, event_us=1.0), events=[(0, 2)])
    assert (found.start[2], found.makespan) == (6.0, 7.0)


def test_an_event_after_a_collective_says_that_it_was_issued_and_no_more() -> None:
    found = run([SENT, Work(us=1.0)], [0, 1], attrs.evolve(FREE, event_us=0.5), events=[(0, 1)])
    assert found.start == [0.0, 0.5]


def test_the_link_takes_one_after_the_other_in_the_order_in_which_they_were_issued() -> None:
    found = run([Work(us=1.0), SENT, SENT, Work(us=2.0), Work(us=0.0, awaits=(2,))], [0, 0, 1, 0, 0], events=[(1, 2)])
    assert (found.start[1:3], found.end[1:3], found.makespan) == ([1.0, 7.0], [7.0, 13.0], 13.0)


def test_a_collective_that_takes_cores_waits_for_them_and_keeps_them_from_others() -> None:
    gang = attrs.evolve(SENT, vector=48, gang=True)
    found = run([gang, Work(us=3.0, vector=1), Work(us=2.0, cube=24)], [0, 1, 2])
    assert found.end == [6.0, 9.0, 2.0]
    found = run([Work(us=3.0, vector=1), gang, Work(us=2.0, cube=24)], [0, 1, 2])
    assert found.end == [3.0, 9.0, 2.0]


def test_a_collective_for_which_there_are_never_cores_is_stuck_with_all_that_wait_for_it() -> None:
    found = run([attrs.evolve(SENT, vector=49, gang=True), Work(us=1.0), Work(us=0.0, awaits=(0,))])
    assert (found.stuck, found.end[1]) == ((0, 2), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_is_faster_than_its_link_or_than_one_stream_without_it(seed: int) -> None:
    chance = random.Random(seed)
    work, streams = list[Work](), list[int]()
    for _ in range(30):
        sent = [index for index, item in enumerate(work) if item.link]
        kind = chance.choice(("compute", "send", "wait") if sent else ("compute", "send"))
        us = chance.uniform(1, 9)
        waits = Work(us=0.0, awaits=(chance.choice(sent),)) if sent else Work(us=us)
        work.append({"compute": Work(us=us), "send": Work(us=us, link=True), "wait": waits}[kind])
        streams.append(0)
    found = run(work)
    on_stream = sum(item.us for item in work if not item.link)
    assert max(on_stream, sum(item.us for item in work if item.link)) <= found.makespan + 1e-9
    assert found.makespan <= sum(item.us for item in work) + 1e-9
    assert found.stuck == ()


def work_of(kind: str, group: str = "nobody's", model: DeviceModel = FREE) -> Work:
    graph = program([(kind, 0, 1)], group).graph
    needed = Dependence.from_graph(graph)
    made = on_link([Work(us=1.0)] * len(needed.kernels), needed, model, ResultSizes())
    return next(item for item, kernel in zip(made, needed.kernels, strict=True) if is_collective(kernel))


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [
        ("all_reduce", 64 * 2), ("all_reduce_", 64 * 2), ("all_gather", 128 / 2), ("reduce_scatter", 128 / 2),
        ("all_to_all", 64), ("broadcast", 64), ("coalesced", 128 * 2),
    ],
)  # fmt: skip
def test_a_collective_takes_its_latency_and_its_share_of_the_bytes(kind: str, nbytes: float) -> None:
    model = attrs.evolve(FREE, link_us=7.0, link_gbytes_s=0.001)
    assert work_of(kind, model=model) == Work(us=pytest.approx(7.0 + nbytes), link=True)


def test_with_a_group_at_hand_the_number_of_its_ranks_counts() -> None:
    model = attrs.evolve(FREE, link_us=0.0, link_gbytes_s=0.001)
    with two_ranks() as groups:
        assert on_both(lambda rank: work_of("all_reduce", groups[rank], model).us) == [64.0, 64.0]
        assert work_of("all_to_all", groups[0], model).us == 32.0


def test_a_collective_takes_as_many_cores_as_the_device_says() -> None:
    assert (work_of("all_reduce", model=ATLAS_A2).vector, work_of("all_reduce", model=ATLAS_A2).gang) == (48, True)
    fewer = attrs.evolve(ATLAS_A2, vector=40)
    assert work_of("all_reduce", model=fewer).vector == 40
    assert (work_of("all_reduce", model=cpu(2)).vector, work_of("all_reduce", model=cpu(2)).gang) == (0, False)


def tensor_parallel(size: int) -> fx.GraphModule:
    """A partial product that is summed over ranks, and beside it one that needs nobody."""
    made = Program(inputs=0)
    with made.mode:
        for name in ("x", "w", "v"):
            made.values.append(node := made.graph.placeholder(name))
            node.meta["val"] = torch.empty(size, size)
    x, w, v = made.values
    summed = made.call(
        ops.wait_tensor.default, made.call(ops.all_reduce.default, made.call(aten.mm.default, x, w), "sum", "tp")
    )
    beside = made.call(aten.mm.default, x, v)
    return made.finish([made.call(aten.add.Tensor, summed, beside)])


CPU = attrs.evolve(CAN, device_model=cpu(2))


def test_what_needs_nobody_runs_while_the_link_works() -> None:
    module = tensor_parallel(256)
    assert apply(module.graph, Streams(), CPU) > 0
    decision = decision_of(module)
    assert decision is not None
    assert decision.prediction is not None
    assert decision.timeline is not None
    timeline = decision.timeline
    spans = dict(zip(timeline.nodes, zip(timeline.start_us, timeline.end_us, strict=True), strict=True))
    begun, done = spans["mm_default_1"]
    sent, arrived = spans["all_reduce_default"]
    assert max(begun, sent) < min(done, arrived)
    assert dict(zip(timeline.nodes, timeline.streams, strict=True))["all_reduce_default"] == "link"
    assert decision.prediction.gain > 0.1
    assert 0 < decision.prediction.busy["link"] < 1


def test_kernels_take_threads_of_their_own_only_where_all_are_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    can = attrs.evolve(CAN, device_model=attrs.evolve(cpu(2), fork_us=0.0))
    problem = Problem.from_graph(tensor_parallel(256).graph, Streams(cost="roofline"), can)
    number = len(problem.kernels)

    def alone(streams: list[int]) -> list[float]:
        found = schedule(problem, streams, range(number)).simulation
        return [end - start for start, end in zip(found.start, found.end, strict=True)]

    by_stream, in_a_row = ([item.us for item in work] for work in (problem.work, problem.work_in_a_row))
    mm = [kernel.name for kernel in problem.kernels].index("mm_default_1")
    assert by_stream[mm] > in_a_row[mm]
    assert alone([0] * number)[mm] == pytest.approx(in_a_row[mm])
    assert alone([int(at == mm) for at in range(number)])[mm] == pytest.approx(by_stream[mm])


def test_times_that_all_ranks_would_have_to_measure_together_are_not_measured() -> None:
    with pytest.raises(PlanError, match=r"collectives need all ranks at once.*\[no_profile\]"):
        plan(tensor_parallel(4).graph, Streams(cost="measured"), attrs.evolve(CPU, profiles=True))


def test_a_plan_with_collectives_is_never_tried_by_one_rank_alone() -> None:
    module = tensor_parallel(256)
    apply(module.graph, Streams(), attrs.evolve(CPU, tries_plans=True))
    decision = decision_of(module)
    assert decision is not None
    assert decision.trial is None


def test_what_a_collective_reads_is_read_until_it_was_waited_for() -> None:
    made = Program(inputs=1)
    x = made.call(aten.neg.default, made.values[0])
    sent = made.call(ops.all_gather_into_tensor.default, x, 2, "tp")
    done = made.call(ops.wait_tensor.default, sent)
    made.call(aten.add_.Tensor, x, 1)
    needed = Dependence.from_graph(made.finish([done, x]).graph)
    edges = {(edge.first.name, edge.then.name): edge.why for edge in needed.edges}
    assert edges["wait_tensor_default", "add__tensor"] == "write after read"
    assert {wait.name: [one.name for one in sent] for wait, sent in needed.awaited.items()} == {
        "wait_tensor_default": ["all_gather_into_tensor_default"]
    }


def test_two_collectives_are_ordered_and_their_waits_are_not() -> None:
    made = Program(inputs=1)
    first, second = (made.call(ops.all_reduce.default, made.values[0], "sum", "tp") for _ in range(2))
    waits = [made.call(ops.wait_tensor.default, sent) for sent in (second, first)]
    problem = Problem.from_graph(made.finish(waits).graph, Streams(cost="none"), CAN)
    named = {(problem.names[a], problem.names[b]) for a, b in problem.edges}
    issued, waits_done = (
        ("all_reduce_default", "all_reduce_default_1"),
        ("wait_tensor_default_1", "wait_tensor_default"),
    )
    assert named == {issued, *zip(issued, waits_done, strict=True)}
