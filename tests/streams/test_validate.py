"""What the validator refuses, by code and by name: hand-written graphs, and faults put into good plans."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import control, core_scope, is_collective
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Cores, Streams
from npucompose.streams import apply, plan_of, validate
from npucompose.table.structure import structure
from tests.sample_graphs import CAN, happens_before, mm_abs_sub, seeded_program, traced

BY_SHAPE = Streams(objective="events", cost="none")
X = torch.randn(4, 4)


def tampered(remove: str) -> fx.GraphModule:
    module = traced(mm_abs_sub, X)
    apply(module.graph, BY_SHAPE, CAN)
    for made in [n for n in module.graph.nodes if n.name.startswith(remove)]:
        module.graph.erase_node(made)
    return module


def test_a_plan_without_its_wait_is_a_race_and_named_so() -> None:
    with pytest.raises(PlanError, match="'sub' on stream 'stream1' must be done before 'add' on stream 'default'"):
        validate(tampered("wait").graph)


def test_a_scope_that_is_not_left_is_refused() -> None:
    with pytest.raises(PlanError, match="nothing leaves"):
        validate(tampered("scope_exit").graph)


def test_a_scope_that_was_not_entered_is_refused() -> None:
    with pytest.raises(PlanError, match="never entered"):
        validate(tampered("scope_enter").graph)


def scoped(*steps: str) -> fx.GraphModule:
    """A graph by hand: `enter:s`, `exit`, `record`, `mm`."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    air = torch.ops.air
    for step in steps:
        word, _, label = step.partition(":")
        if word == "enter":
            graph.call_function(air.scope_enter.default, (["_user_stream_label"], [label]))
        elif word == "odd":
            graph.call_function(
                air.scope_enter.default, (["_user_stream_priority", "_user_stream_label"], ["1", label])
            )
        elif word == "exit":
            graph.call_function(air.scope_exit.default, ())
        elif word == "record":
            graph.call_function(air.record.default, ())
        else:
            graph.call_function(torch.ops.aten.mm.default, (x, x))
    graph.output((x,))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (("enter:a", "enter:b", "mm", "exit", "exit"), "must be flat"),
        (("odd:a", "mm", "exit"), "must be the first key"),
        (("enter:a", "record", "mm", "exit"), "records nothing"),
    ],
)
def test_what_the_lowerings_would_misread_is_refused(steps: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        validate(scoped(*steps).graph)


def refused(graph: fx.Graph, can: Capabilities | None = None, before: Dependence | None = None) -> str:
    """The code of the refusal; "" for a graph that passes."""
    try:
        validate(graph, before, can)
    except PlanError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (("enter:a", "mm"), "scope_unpaired"),
        (("mm", "exit"), "scope_unpaired"),
        (("enter:a", "enter:b", "mm", "exit", "exit"), "scope_nested"),
        (("odd:a", "mm", "exit"), "scope_label"),
        (("enter:a", "record", "mm", "exit"), "record_nothing"),
        (("enter:a", "mm", "record", "exit"), ""),
    ],
)
def test_each_refusal_of_scopes_has_its_code(steps: tuple[str, ...], code: str) -> None:
    assert refused(scoped(*steps).graph) == code


def test_a_wait_for_what_comes_later_is_a_deadlock_and_the_circle_is_printed() -> None:
    module = tampered("nothing")
    record = next(node for node in module.graph.nodes if control(node) == "record")
    wait = next(node for node in module.graph.nodes if control(node) == "wait")
    first = next(node for node in module.graph.nodes if node.name == "abs_1")
    first.prepend(wait)
    with pytest.raises(PlanError, match=rf"{wait.name} -> … -> {record.name} -> {wait.name}"):
        validate(module.graph)


def test_more_streams_or_events_than_the_device_has_are_refused() -> None:
    graph = tampered("nothing").graph
    assert refused(graph, CAN) == ""
    assert refused(graph, attrs.evolve(CAN, max_streams=1)) == "too_many_streams"
    assert refused(graph, attrs.evolve(CAN, max_events=0)) == "too_many_events"


def test_scopes_of_the_other_package_are_refused() -> None:
    graph = tampered("nothing").graph
    assert refused(graph, attrs.evolve(CAN, scope_namespace="npugraph_ex")) == "mode"


@pytest.fixture(scope="module")
def gather() -> torch._ops.OpOverload:
    """An operator by the name of a kernel that communicates from inside: all cores or none."""
    library = torch.library.Library("npucompose_test", "DEF")
    library.define("npu_moe_distribute_dispatch(Tensor x) -> Tensor")
    library.impl("npu_moe_distribute_dispatch", lambda x: x + 1, "CompositeExplicitAutograd")
    KEPT.append(library)
    return torch.ops.npucompose_test.npu_moe_distribute_dispatch.default


KEPT: list[torch.library.Library] = []


def test_two_kernels_that_want_all_cores_need_an_order(gather: torch._ops.OpOverload) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(gather, (x,))
    record = graph.call_function(torch.ops.air.record.default, ())
    graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["s"]))
    wait = graph.call_function(torch.ops.air.wait.default, ([record],))
    second = graph.call_function(gather, (x,))
    graph.call_function(torch.ops.air.scope_exit.default, ())
    graph.output((first, second))
    assert refused(graph, CAN) == ""
    graph.erase_node(wait)
    assert refused(graph, CAN) == "gang"
    with pytest.raises(PlanError, match="no event orders them; together they want 96 of 48: they can starve"):
        validate(graph, can=CAN)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ((16, 32), ""),
        ((20, 20), ""),
        ((20, 29), "gang"),
        ((16, 16, 16), ""),
        ((20, 20, 20), "gang"),  # any two fit beside each other, three do not
        ((12, 12, 12, 12), ""),
    ],
)
def test_limited_kernels_may_run_at_once_as_long_as_all_of_them_fit(
    gather: torch._ops.OpOverload, limits: tuple[int, ...], code: str
) -> None:
    graph, air = fx.Graph(), torch.ops.air
    x = graph.placeholder("x")
    for number, vector in enumerate(limits):
        graph.call_function(air.scope_enter.default, (["_user_stream_label"], [f"s{number}"]))
        graph.call_function(air.scope_enter.default, core_scope(Cores(aicore=8, vectorcore=vector)))
        graph.call_function(gather, (x,))
        graph.call_function(air.scope_exit.default, ())
        graph.call_function(air.scope_exit.default, ())
    graph.output(())
    assert refused(graph, CAN) == code


def reduced(streams: int) -> tuple[fx.GraphModule, Dependence]:
    """Four collectives of one group beside other kernels, planned on so many streams; and what they need."""
    from torch.distributed import _functional_collectives

    assert _functional_collectives  # defines the operators

    reduce = torch.ops._c10d_functional.all_reduce.default
    program = seeded_program(0, 12)
    graph = program.graph
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(inputs[-1]):
        given = graph.placeholder("given")
    with inputs[0].meta["val"].fake_mode:
        given.meta["val"] = torch.empty(4, 4)
        for _ in range(4):
            with graph.inserting_before(output):
                graph.call_function(reduce, (given, "sum", "group")).meta["val"] = torch.empty(4, 4)
    before = Dependence.from_graph(graph)
    plan = Streams(objective="streams", cost="none", max_streams=streams, min_gain=0)
    apply(graph, plan, attrs.evolve(CAN, device_model=attrs.evolve(CAN.device_model, vector=10_000)))
    return program, before


def collectives(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes if is_collective(node)]


def test_every_rank_issues_its_collectives_in_the_program_s_order_whatever_its_plan() -> None:
    orders = {tuple(collectives(reduced(streams)[0].graph)) for streams in (1, 2, 3, 4)}
    assert len(orders) == 1


def test_collectives_on_two_streams_that_no_event_orders_are_refused_wherever_that_is_seeded() -> None:
    found: Counter[str] = Counter()
    for seed in range(20):
        module, before = reduced(1)
        chance = random.Random(seed)
        one = chance.choice([n for n in module.graph.nodes if is_collective(n)][1:])
        with module.graph.inserting_before(one):
            module.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["aside"]))
        with module.graph.inserting_after(one):
            module.graph.call_function(torch.ops.air.scope_exit.default, ())
        assert broken(module, before)
        found[refused(module.graph, before=before)] += 1
    assert found == {"collective_order": 20}


def test_random_numbers_and_effects_on_two_streams_have_codes_of_their_own() -> None:
    module = traced(lambda x: (torch.rand_like(x), torch.rand_like(x)), X)
    before = Dependence.from_graph(module.graph)
    second = before.kernels[1]
    with module.graph.inserting_before(second):
        module.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["s"]))
    with module.graph.inserting_after(second):
        module.graph.call_function(torch.ops.air.scope_exit.default, ())
    assert refused(module.graph) == "random_order"


def broken(module: fx.GraphModule, before: Dependence) -> bool:
    """Whether stream order and events leave some needed order out, by an implementation that shares no code."""
    try:
        done = happens_before(module.graph)
    except KeyError:  # a wait before its record
        return True
    return any(edge.first not in done[edge.then] for edge in before.edges)


def controls(module: fx.GraphModule, kind: str) -> list[fx.Node]:
    return [node for node in module.graph.nodes if control(node) == kind]


def drop_event(module: fx.GraphModule, chance: random.Random) -> bool:
    waits = controls(module, "wait")
    if waits:
        wait = chance.choice(waits)
        records = list(wait.args[0])  # type: ignore[arg-type]
        records.pop(chance.randrange(len(records)))
        wait.args = (records,)
    return bool(waits)


def wrong_stream(module: fx.GraphModule, chance: random.Random) -> bool:
    scopes = controls(module, "scope_enter")
    if scopes:
        scope = chance.choice(scopes)
        scope.args = (scope.args[0], ["elsewhere"])
    return bool(scopes)


def moved_record(module: fx.GraphModule, chance: random.Random) -> bool:
    """To the beginning of its scope, or of the list."""
    records = controls(module, "record")
    if records:
        record = chance.choice(records)
        place = record.prev
        while control(place) != "scope_enter" and place.op != "placeholder":
            place = place.prev
        place.append(record)
    return bool(records)


def circle(module: fx.GraphModule, chance: random.Random) -> bool:
    """A wait moved to before its record."""
    waits = controls(module, "wait")
    if waits:
        wait = chance.choice(waits)
        wait.args[0][0].prepend(wait)  # type: ignore[index, union-attr]
    return bool(waits)


def kernel_outside(module: fx.GraphModule, chance: random.Random) -> bool:
    """The first kernel of a scope left on the default stream."""
    scopes = controls(module, "scope_enter")
    if scopes:
        scope = chance.choice(scopes)
        node = scope.next
        while control(node) is not None:
            node = node.next
        scope.prepend(node)
    return bool(scopes)


KINDS: tuple[Callable[[fx.GraphModule, random.Random], bool], ...] = (
    drop_event,
    wrong_stream,
    moved_record,
    circle,
    kernel_outside,
)


@pytest.mark.parametrize("faults", [60, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("plans_at_first_sight")
def test_seeded_faults_are_all_caught(faults: int) -> None:
    caught: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    seed = 0
    while sum(caught.values()) < faults:
        seed += 1
        fault = KINDS[seed % len(KINDS)]
        module = seeded_program(seed, size=16)
        before = Dependence.from_graph(module.graph)
        apply(module.graph, Streams(min_gain=0, max_streams=3), CAN)
        assert not broken(module, before)
        assert refused(module.graph, CAN, before) == ""
        if not fault(module, random.Random(seed)):
            continue
        code = refused(module.graph, CAN, before)
        if broken(module, before):
            assert code, f"{fault.__name__} in program {seed} was not caught"
            caught[fault.__name__] += 1
            codes[code] += 1
    assert set(caught) == {kind.__name__ for kind in KINDS}
    assert {"race", "deadlock", "record_nothing"} <= set(codes)


EARLY = attrs.evolve(CAN, frees_early=True)


def reused(x: torch.Tensor) -> torch.Tensor:
    """The side stream makes exp, the main one reads it in mm_1; abs on the side waits for mm only and wants memory."""
    first = x.exp()
    product = x.mm(x)
    return first.mm(product) + product.abs().neg()


def test_memory_that_another_stream_still_reads_is_not_given_away() -> None:
    tree = {"kind": "explicit", "plan": [{"stream": "s", "match": {"target": "re:aten.(exp|abs|neg).*"}}]}
    wanted = structure(Streams, tree, "streams")
    module = traced(reused, X)
    apply(module.graph, wanted, CAN)
    with pytest.raises(PlanError, match=r"'exp' of stream 's' is read by 'mm_1' on stream 'default', and its memory"):
        validate(module.graph, can=EARLY)
    kept = traced(reused, X)
    apply(kept.graph, wanted, EARLY)
    assert refused(kept.graph, EARLY) == ""
    listed = [str(node.target) for node in kept.graph.nodes]
    mention = listed.index("aten._assert_tensor_metadata.default")
    assert listed[mention + 1] == "output"  # the side stream never learns that mm_1 is done
    assert plan_of(kept.graph) == plan_of(module.graph)


@pytest.mark.parametrize("graphs", [6, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("plans_at_first_sight")
def test_memory_is_kept_for_every_stream_of_random_graphs(graphs: int) -> None:
    changed = 0
    for seed in range(graphs):
        module = seeded_program(seed, size=16)
        before = Dependence.from_graph(module.graph)
        apply(module.graph, Streams(min_gain=0, max_streams=3), CAN)
        changed += refused(module.graph, EARLY, before) == "lifetime"
        again = seeded_program(seed, size=16)
        apply(again.graph, Streams(min_gain=0, max_streams=3), EARLY)
        again.graph.lint()
        assert refused(again.graph, EARLY) == ""
    assert changed > graphs // 12
