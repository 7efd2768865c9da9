"""Kernels that take all their cores at once, collectives among them: plans let them take turns, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch.distributed import _functional_collectives

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.schema.streams import Cores, Match, PlanEntry, Streams
from npucompose.streams import apply, plan_of, validate
from npucompose.streams.gangs import turns
from npucompose.targets.null_device import NullDevice
from npucompose.vendor.devices import ATLAS_A2, STREAMS
from tests.sample_graphs import CAN, Program, aten, node
from tests.searches import examples

assert _functional_collectives  # defines the operators

ON_NPU = attrs.evolve(CAN, device_model=ATLAS_A2, core_limits=True)
BY_THE_LINK = attrs.evolve(ON_NPU, device_model=attrs.evolve(ATLAS_A2, collective_cores=0))
ANY = Streams(min_gain=0, max_streams=3, cost="none", objective="streams")
KEPT: list[torch.library.Library] = []
collective = torch.ops._c10d_functional


@pytest.fixture(scope="module")
def gang() -> torch._ops.OpOverload:
    """An operator by the name of a kernel that communicates from inside."""
    library = torch.library.Library("npucompose_gangs", "DEF")
    library.define("npu_moe_distribute_combine(Tensor x) -> Tensor")
    library.impl("npu_moe_distribute_combine", lambda x: x + 1, "CompositeExplicitAutograd")
    KEPT.append(library)
    return torch.ops.npucompose_gangs.npu_moe_distribute_combine.default


def two(gang: torch._ops.OpOverload) -> fx.GraphModule:
    made = Program(inputs=2)
    first, then = (made.call(gang, made.call(aten.mm.default, value, value)) for value in made.values)
    return made.finish([made.call(aten.add.Tensor, first, then)])


def beside_a_collective(gang: torch._ops.OpOverload) -> fx.GraphModule:
    """The gang stands between the collective and the wait for it."""
    made = Program(inputs=2)
    flying = made.call(collective.all_reduce.default, made.values[0], "sum", "tp")
    result = made.call(gang, made.call(aten.mm.default, made.values[1], made.values[1]))
    landed = made.call(collective.wait_tensor.default, flying)
    return made.finish([made.call(aten.add.Tensor, result, landed)])


@pytest.mark.parametrize("objective", ["makespan", "time", "streams", "events", "ge"])
@pytest.mark.parametrize("graph", [two, beside_a_collective])
def test_a_plan_that_is_found_lets_gangs_take_turns(
    gang: torch._ops.OpOverload, graph: Callable[[torch._ops.OpOverload], fx.GraphModule], objective: str
) -> None:
    module = graph(gang)
    before = Dependence.from_graph(module.graph)
    apply(module.graph, attrs.evolve(ANY, objective=objective), ON_NPU)
    validate(module.graph, before, ON_NPU)


def test_a_collective_is_through_where_it_was_waited_for(gang: torch._ops.OpOverload) -> None:
    module = beside_a_collective(gang)
    with pytest.raises(PlanError, match=r"'all_reduce_default' \(48 on .* is through where it was waited .* 96 of 48"):
        validate(module.graph, can=ON_NPU)
    validate(module.graph, can=BY_THE_LINK)
    found = turns(Dependence.from_graph(module.graph), ATLAS_A2, ())
    assert [(first.name, then.name) for first, then in found] == [
        ("wait_tensor_default", "npu_moe_distribute_combine_default")
    ]


def test_a_wait_that_needs_the_gang_stays_behind_it(gang: torch._ops.OpOverload) -> None:
    """Negative control: order that was asked for puts the wait last; `check_gangs` refuses it then."""
    made = Program(inputs=1)
    flying = made.call(collective.all_reduce.default, made.values[0], "sum", "tp")
    result = made.call(gang, made.values[0])
    landed = made.call(collective.wait_tensor.default, flying)
    module = made.finish([made.call(aten.add.Tensor, landed, result)])
    needed = Dependence.from_graph(module.graph)
    edge = attrs.evolve(needed.edges[0], first=result, then=landed)
    assert turns(attrs.evolve(needed, edges=(*needed.edges, edge)), ATLAS_A2, ()) == []


def test_gangs_that_a_person_gave_cores_run_beside_each_other(gang: torch._ops.OpOverload) -> None:
    module = two(gang)
    names = ("npu_moe_distribute_combine_default", "npu_moe_distribute_combine_default_1")
    half = Cores(aicore=12, vectorcore=24)
    entries = tuple(PlanEntry(stream=f"s{i}", match=Match(name=name), cores=half) for i, name in enumerate(names))
    apply(module.graph, Streams(kind="explicit", plan=entries, max_streams=3), ON_NPU)
    events = plan_of(module.graph).events
    assert all({event.recorder, event.waiter} != set(names) for event in events)
    assert node(module.graph, names[0]) is not None


STEPS = st.lists(
    st.tuples(st.sampled_from(("mm", "gang", "reduce", "wait")), st.integers(0, 5), st.integers(0, 5)),
    min_size=4,
    max_size=14,
)


def program(steps: list[tuple[str, int, int]], gang: torch._ops.OpOverload) -> fx.GraphModule:
    made = Program(inputs=2)
    values, flying = list(made.values), list[fx.Node]()
    for what, first, second in steps:
        a, b = values[first % len(values)], values[second % len(values)]
        if what == "mm":
            values.append(made.call(aten.mm.default, a, b))
        elif what == "gang":
            values.append(made.call(gang, a))
        elif what == "reduce":
            flying.append(made.call(collective.all_reduce.default, a, "sum", "tp"))
        elif flying:
            values.append(made.call(collective.wait_tensor.default, flying.pop(first % len(flying))))
    values += [made.call(collective.wait_tensor.default, one) for one in flying]
    return made.finish(values[-4:])


@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS, objective=st.sampled_from(("makespan", "streams", "events")))
def test_no_plan_that_is_found_is_refused_for_its_gangs(
    gang: torch._ops.OpOverload, steps: list[tuple[str, int, int]], objective: str
) -> None:
    module = program(steps, gang)
    before = Dependence.from_graph(module.graph)
    apply(module.graph, attrs.evolve(ANY, objective=objective), ON_NPU)
    if plan_of(module.graph).events:
        validate(module.graph, before, ON_NPU)


def test_the_device_table_says_how_many_streams_there_are() -> None:
    assert NullDevice().capabilities("reduce-overhead").max_streams == STREAMS
    found = NullDevice(soc="ascend910b4").capabilities("reduce-overhead")
    assert (found.max_streams, found.device_model.vector) == (32768, 40)
