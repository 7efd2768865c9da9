"""What scopes, records and waits of a graph order: read off the list, by clocks, and against a device's limits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence, Edge
from npucompose.results.streams import StreamEvent
from npucompose.schema.streams import DEFAULT_STREAM, Streams
from npucompose.streams import apply, decision_of, execute, plan_of, validate
from npucompose.streams import emit as emitting
from npucompose.streams.emit import strip
from npucompose.streams.problem import Problem
from npucompose.streams.timing import Timing, issued_before
from npucompose.streams.validation import _code, check_operators, check_streams
from tests.sample_graphs import CAN, mm_abs_sub, names, node, traced

X = torch.randn(4, 4)
air, aten = torch.ops.air, torch.ops.aten


class Written:
    """A graph by hand: `k` calls a kernel, `on`/`off` enter and leave a stream, `record` and `wait` are events."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")

    def k(self) -> fx.Node:
        return self.graph.create_node("call_function", aten.neg.default, (self.x,), {}, name="neg")

    def on(self, stream: str) -> None:
        self.graph.call_function(air.scope_enter.default, (["_user_stream_label"], [stream]))

    def other_scope(self) -> None:
        self.graph.call_function(air.scope_enter.default, (["_op_aicore_num"], ["3"]))

    def off(self) -> None:
        self.graph.call_function(air.scope_exit.default, ())

    def record(self) -> fx.Node:
        return self.graph.call_function(air.record.default, ())

    def wait(self, *awaited: fx.Node) -> fx.Node:
        return self.graph.call_function(air.wait.default, (list(awaited),))

    def tagged(self, does: str, tag: str) -> None:
        self.graph.call_function(getattr(air, f"tagged_event_{does}").default, (tag,))

    def done(self, *outputs: fx.Node) -> tuple[fx.Graph, Dependence]:
        self.graph.output(outputs)
        return self.graph, Dependence.from_graph(self.graph)


def before(graph: fx.Graph, needed: Dependence) -> dict[str, list[str]]:
    found = issued_before(graph, needed.kernels)
    return {kernel.name: [first.name for first in firsts] for kernel, firsts in found.items()}


def two_streams() -> tuple[fx.Graph, Dependence]:
    """neg and neg_1 by default, neg_2 and neg_3 aside after neg; neg_4 waits for neg_3."""
    made = Written()
    made.k()
    record = made.record()
    made.k()
    made.on("s")
    made.wait(record)
    made.k()
    made.k()
    back = made.record()
    made.off()
    made.wait(back)
    made.k()
    return made.done()


def test_a_kernel_waits_for_the_last_of_its_stream_and_for_what_is_awaited() -> None:
    graph, needed = two_streams()
    assert before(graph, needed) == {
        "neg": [],
        "neg_1": ["neg"],
        "neg_2": ["neg"],
        "neg_3": ["neg_2"],
        "neg_4": ["neg_1", "neg_3"],
    }
    assert plan_of(graph, needed).events == (
        StreamEvent(recorder="neg", waiter="neg_2"),
        StreamEvent(recorder="neg_3", waiter="neg_4"),
    )


def test_a_wait_holds_up_the_next_kernel_of_its_stream_only_and_once() -> None:
    made = Written()
    made.k()
    record = made.record()
    made.wait(record)
    made.on("s")
    made.wait(record)
    made.wait(record)
    made.off()
    made.k()
    made.on("s")
    made.k()
    made.off()
    assert before(*made.done()) == {"neg": [], "neg_1": ["neg"], "neg_2": ["neg"]}


def test_a_wait_for_a_tensor_is_one_for_the_kernels_that_make_it() -> None:
    made = Written()
    first = made.k()
    view = made.graph.call_function(aten.t.default, (first,))
    made.on("s")
    made.wait(view, made.x)
    made.k()
    made.off()
    graph, needed = made.done()
    assert before(graph, needed) == {"neg": [], "neg_1": ["neg"]}
    assert Timing.from_graph(graph, needed).events == [StreamEvent(recorder="neg", waiter="neg_1")]


def test_a_record_before_any_kernel_stands_for_none() -> None:
    made = Written()
    made.on("s")
    record = made.record()
    made.off()
    made.wait(record)
    made.k()
    graph, needed = made.done()
    assert before(graph, needed) == {"neg": []}
    with pytest.raises(PlanError, match="'record_default' stands on stream 's' before any kernel") as caught:
        Timing.from_graph(graph, needed)
    assert caught.value.code == "record_nothing"


def test_clocks_say_how_far_each_stream_is_known_to_be() -> None:
    graph, needed = two_streams()
    timing = Timing.from_graph(graph, needed)
    assert timing.streams == {"neg": "default", "neg_1": "default", "neg_2": "s", "neg_3": "s", "neg_4": "default"}
    assert {kernel.name: number for kernel, number in timing.number.items()} == {
        "neg": 0, "neg_1": 1, "neg_2": 2, "neg_3": 3, "neg_4": 4,
    }  # fmt: skip
    assert {kernel.name: dict(clock) for kernel, clock in timing.clocks.items()} == {
        "neg": {"default": 0},
        "neg_1": {"default": 1},
        "neg_2": {"default": 0, "s": 2},
        "neg_3": {"default": 0, "s": 3},
        "neg_4": {"default": 4, "s": 3},
    }
    assert timing.events == [StreamEvent(recorder="neg", waiter="neg_2"), StreamEvent(recorder="neg_3", waiter="neg_4")]
    kernels = {kernel.name: kernel for kernel in needed.kernels}
    pairs = {(a, b) for a in kernels for b in kernels if timing.orders(kernels[a], kernels[b])}
    assert pairs == {
        ("neg", "neg_1"), ("neg", "neg_2"), ("neg", "neg_3"), ("neg", "neg_4"), ("neg_1", "neg_4"),
        ("neg_2", "neg_3"), ("neg_2", "neg_4"), ("neg_3", "neg_4"),
    }  # fmt: skip


def test_what_a_stream_knew_it_still_knows_after_a_wait_for_one_that_knows_less() -> None:
    made = Written()
    made.k()
    early = made.record()
    made.on("a")
    made.wait(early)
    made.k()
    side = made.record()
    made.off()
    made.k()
    late = made.record()
    made.on("b")
    made.wait(late)
    made.k()
    made.wait(side)
    made.k()
    made.off()
    graph, needed = made.done()
    timing = Timing.from_graph(graph, needed)
    assert dict(timing.clocks[node(graph, "neg_4")]) == {"default": 2, "a": 1, "b": 4}


def test_an_event_within_a_stream_is_none() -> None:
    made = Written()
    made.k()
    made.wait(made.record())
    made.k()
    assert Timing.from_graph(*made.done()).events == []


def test_the_stream_is_that_of_the_innermost_scope_that_names_one() -> None:
    made = Written()
    made.other_scope()
    made.k()
    made.on("s")
    made.other_scope()
    made.k()
    made.off()
    made.k()
    made.off()
    made.off()
    made.k()
    timing = Timing.from_graph(*made.done())
    assert list(timing.streams.values()) == ["default", "s", "s", "default"]


def test_a_scope_of_the_default_stream_may_hold_another() -> None:
    made = Written()
    made.on(DEFAULT_STREAM)
    made.on("s")
    made.k()
    made.off()
    made.off()
    assert list(Timing.from_graph(*made.done()).streams.values()) == ["s"]


def test_a_scope_within_a_stream_is_refused_with_both_names() -> None:
    made = Written()
    made.on("a")
    made.on("b")
    made.k()
    made.off()
    made.off()
    with pytest.raises(PlanError, match="'scope_enter_default_1' enters stream 'b' inside stream 'a': scopes must be"):
        Timing.from_graph(*made.done())


def test_the_scope_that_nothing_leaves_is_the_last_one_entered() -> None:
    made = Written()
    made.on("a")
    made.off()
    made.on("b")
    made.k()
    with pytest.raises(PlanError, match="'scope_enter_default_1' enters a scope that nothing leaves"):
        Timing.from_graph(*made.done())


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("random order", "random_order"), ("effect order", "effect_order"), ("asked for", "order"), ("data", "race"),
        ("read after write", "race"), ("write after read", "race"), ("write after write", "race"),
    ],
)  # fmt: skip
def test_each_kind_of_order_has_its_code(why: Any, code: str) -> None:
    kernel = node(traced(mm_abs_sub, X).graph, "mm")
    assert _code(Edge(kernel, kernel, why)) == code


def test_the_order_of_collectives_has_a_code_of_its_own() -> None:
    from torch.distributed import _functional_collectives

    assert _functional_collectives  # defines the operators
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
    other = graph.call_function(aten.neg.default, (x,))
    assert _code(Edge(made, made, "effect order")) == "collective_order"
    assert _code(Edge(made, other, "effect order")) == _code(Edge(other, made, "effect order")) == "effect_order"
    assert _code(Edge(made, made, "data")) == "race"


def planned() -> fx.GraphModule:
    module = traced(mm_abs_sub, X)
    apply(module.graph, Streams(objective="events", cost="none"), CAN)
    return module


def test_an_order_that_was_asked_for_is_proven_too() -> None:
    graph = planned().graph
    found = Dependence.from_graph(graph)
    asked = attrs.evolve(found, edges=(*found.edges, Edge(node(graph, "sub"), node(graph, "mm"), "asked for")))
    with pytest.raises(PlanError, match=r"'sub' on stream 'stream1' must be .* 'mm' on stream 'default' \(asked for\)"):
        validate(graph, asked)


def test_a_graph_that_uses_all_that_a_device_has_passes() -> None:
    graph = planned().graph
    validate(graph, can=attrs.evolve(CAN, max_streams=2, max_events=1))
    validate(graph, can=attrs.evolve(CAN, max_events=None))


def test_streams_beyond_the_device_are_counted_and_named_in_order() -> None:
    with pytest.raises(PlanError) as caught:
        check_streams("plan", ["z", "a", "z", "default"], attrs.evolve(CAN, max_streams=2))
    assert str(caught.value).startswith(
        "The plan uses 3 streams (a, default, z); target=null_device mode=reduce-overhead has 2."
    )
    check_streams("plan", ["z", "a", "z", "default"], attrs.evolve(CAN, max_streams=3))


def test_the_first_event_beyond_the_device_is_named() -> None:
    graph, needed = two_streams()
    with pytest.raises(PlanError) as caught:
        validate(graph, needed, attrs.evolve(CAN, max_events=1))
    assert caught.value.code == "too_many_events"
    assert "The graph has 2 events; target=null_device mode=reduce-overhead has 1" in str(caught.value)
    assert "recorded after 'neg_3' for 'neg_4'" in str(caught.value)


def test_operators_of_other_packages_mean_nothing_to_a_mode() -> None:
    check_operators(traced(mm_abs_sub, X).graph, attrs.evolve(CAN, scope_namespace="npugraph_ex"))
    graph, _ = two_streams()
    check_operators(graph, CAN)
    with pytest.raises(PlanError) as caught:
        check_operators(graph, attrs.evolve(CAN, scope_namespace="npugraph_ex"))
    assert (
        "'scope_enter_default' is of torch.ops.air; mode=reduce-overhead reads scopes of torch.ops.npugraph_ex"
        in str(caught.value)
    )


def test_records_and_waits_may_be_of_either_package() -> None:
    made = Written()
    made.k()
    made.wait(made.record())
    made.k()
    check_operators(made.done()[0], attrs.evolve(CAN, scope_namespace="npugraph_ex"))


def test_taking_streams_out_says_how_many_nodes_went_and_leaves_the_kernels() -> None:
    graph, _ = two_streams()
    assert strip(graph) == 6
    graph.lint()
    assert names(graph) == ["x", "neg", "neg_1", "neg_2", "neg_3", "neg_4", "output"]
    assert strip(graph) == 0


def test_a_record_returns_an_empty_tensor_of_the_graph_s_mode() -> None:
    module = planned()
    record = next(one for one in module.graph.nodes if one.name.startswith("record"))
    fake = node(module.graph, "mm").meta["val"]
    assert type(record.meta["val"]) is type(fake)
    assert record.meta["val"].fake_mode is fake.fake_mode
    assert record.meta["val"].shape == (0,)
    waiting = next(one for one in module.graph.nodes if one.name.startswith("wait"))
    assert waiting.meta["val"] is None
    plain = emitting._empty(fx.Graph())
    assert (type(plain), plain.shape) == (torch.Tensor, (0,))


def test_an_order_by_chance_is_legal_and_of_every_kernel() -> None:
    graph, needed = two_streams()
    firsts = issued_before(graph, needed.kernels)
    found = set()
    for seed in range(200):
        order = execute.random_order(needed.kernels, firsts, random.Random(seed))
        assert all(order.index(first) < order.index(kernel) for kernel in firsts for first in firsts[kernel])
        found.add(tuple(kernel.name for kernel in order))
    assert len(found) == 3  # neg_1 before, between and behind neg_2 and neg_3


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ({"mm": 1, "abs_1": 9, "sub": 9, "add": 9, "": []}, "the first kernel with other bits is 'abs_1'"),
        ({"mm": 1, "abs_1": 2, "sub": 3, "add": 4, "": [7]}, "the outputs or the inputs afterwards differ"),
        ({"mm": 1, "": "'sub' is read before it is made"}, "'sub' is read before it is made"),
        ({"mm": 8, "": "'sub' is read before it is made"}, "'sub' is read before it is made"),
    ],
)
def test_a_race_is_told_by_what_shows_first(got: dict[str, Any], words: str) -> None:
    kernels = Dependence.from_graph(traced(mm_abs_sub, X).graph).kernels
    expected = {"mm": 1, "abs_1": 2, "sub": 3, "add": 4, "": []}
    told = execute._words(5, 3, kernels, expected, got)
    assert told == f"Random order 5 (seed 3), which streams and events allow, gives another result: {words}."


def test_what_was_asked_for_is_an_edge_behind_those_of_the_data() -> None:
    module = traced(mm_abs_sub, X)
    mm, sub = node(module.graph, "mm"), node(module.graph, "sub")
    problem = Problem.from_graph(module.graph, Streams(), CAN, [(sub, mm)])
    assert problem.names == ["abs_1", "sub", "mm", "add"]
    assert [(edge.first.name, edge.then.name, edge.why) for edge in problem.needed.edges] == [
        ("abs_1", "sub", "data"), ("mm", "add", "data"), ("sub", "add", "data"), ("sub", "mm", "asked for"),
    ]  # fmt: skip
    found = Dependence.from_graph(module.graph)
    assert problem.needed.origins.keys() == found.origins.keys()
    assert problem.needed.aliases.written == found.aliases.written
    with pytest.raises(PlanError, match="goes in a circle: mm -> add -> mm") as caught:
        Problem.from_graph(module.graph, Streams(), CAN, [(node(module.graph, "add"), mm)])
    assert caught.value.code == "cycle"


def test_streams_of_the_graph_itself_that_are_safe_stay_and_are_said_to_be_applied() -> None:
    module = planned()
    assert apply(module.graph, Streams(), CAN) == 0
    decision = decision_of(module)
    assert decision is not None
    assert (decision.applied, decision.validated, decision.why) == (True, True, "streams of the graph itself")


def test_streams_whose_mode_syncs_them_are_applied_and_not_proven() -> None:
    module = planned()
    for gone in [one for one in module.graph.nodes if one.name.startswith(("wait", "record"))][::-1]:
        module.graph.erase_node(gone)
    assert apply(module.graph, Streams(), attrs.evolve(CAN, explicit_events=False)) == 0
    decision = decision_of(module)
    assert decision is not None
    assert (decision.applied, decision.validated) == (True, False)
    assert decision.why == "streams of the graph itself; the mode syncs their data"


@pytest.fixture
def tagged_events() -> Iterator[None]:
    """torch.npu's own events as TorchAir's operators, by the schemas of the wheel's ops/_tagged_event.py (2.13.0)."""
    library = torch.library.Library("air", "FRAGMENT")
    for does in ("record", "wait"):
        library.define(f"tagged_event_{does}(str tag, bool created_inside=False) -> ()")
    yield
    library._destroy()


@pytest.mark.usefixtures("tagged_events")
@pytest.mark.parametrize(("again_when_idle", "ordered"), [(False, True), (True, False)])
def test_an_event_that_is_recorded_again_stands_for_what_its_stream_did_by_then(
    again_when_idle: bool, ordered: bool
) -> None:
    """Recorded once more on a stream that has done nothing, an event orders nothing: torch.npu's own may be."""
    made = Written()
    first = made.k()
    made.tagged("record", "event")
    if again_when_idle:
        made.on("idle")
        made.tagged("record", "event")
        made.off()
    made.on("s")
    made.tagged("wait", "event")
    then = made.k()
    made.off()
    graph, needed = made.done(first, then)
    assert before(graph, needed) == {"neg": [], "neg_1": ["neg"] if ordered else []}
    then.args = (first,)
    graph.lint()
    dependence = Dependence.from_graph(graph)
    if ordered:
        validate(graph, dependence)
    else:
        with pytest.raises(PlanError, match="'neg' on stream 'default' must be done before 'neg_1' on stream 's'"):
            validate(graph, dependence)
