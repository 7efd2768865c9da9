"""A walk calls a graph's operators on the streams of its plan, lets values go, and refuses what no recording holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from npucompose import ops
from npucompose.errors import CaptureError
from npucompose_replay.capture.recorder import attribute, last_uses
from npucompose_replay.cuda.device import Walk
from replay_tests.cuda.simulated_device import SimulatedDevice
from tests.graph_helpers import built, traced

aten, air = torch.ops.aten, torch.ops.air


@pytest.fixture(autouse=True)
def defined() -> None:
    ops.define()


def walk(module: fx.GraphModule) -> tuple[Walk, SimulatedDevice]:
    device = SimulatedDevice()
    return Walk(graph_module=module, device=device), device


def enter(graph: fx.Graph, **said: str) -> None:
    graph.call_function(air.scope_enter.default, (list(said), list(said.values())))


def test_values_die_with_their_last_reader_and_unread_ones_at_once() -> None:
    def make(graph: fx.Graph, given: list[fx.Node]) -> Any:
        a = graph.call_function(aten.relu.default, (given[0],))
        graph.call_function(aten.abs.default, (a,))
        b = graph.call_function(aten.add.Tensor, (a, a))
        return (b,)

    graph = built(make, 2).graph
    named = {at.name: sorted(node.name for node in dead) for at, dead in last_uses(graph).items()}
    assert named == {
        "relu_default": ["x0"], "x1": ["x1"], "abs_default": ["abs_default"],
        "add_tensor": ["relu_default"], "output": ["add_tensor", "output"],
    }  # fmt: skip


def test_a_run_gives_what_the_output_names_and_numbers_as_they_are() -> None:
    made, _ = walk(built(lambda graph, given: (graph.call_function(aten.add.Tensor, (given[0], 1)), 7, None), 1))
    x = torch.ones(2)
    result, seven, nothing = made.run([x])
    assert (result.tolist(), seven, nothing) == ([2, 2], 7, None)
    assert made.at.op == "output"
    single, _ = walk(built(lambda graph, given: graph.call_function(aten.neg.default, tuple(given)), 1))
    assert [value.tolist() for value in single.run([x])] == [[-1, -1]]


def test_a_value_that_is_dead_is_let_go_before_the_next_operator_unless_streams_are_planned() -> None:
    import weakref

    seen: list[bool] = []
    made: list[Any] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        if made:
            seen.append(made[0]() is not None)
        result = x + 1
        made.append(weakref.ref(result))
        return result

    with torch.library._scoped_library("npucompose_walk", "FRAGMENT") as library:
        library.define("watch(Tensor x) -> Tensor")
        library.impl("watch", watch, "CPU")

        def make(graph: fx.Graph, given: list[fx.Node], planned: bool) -> Any:
            first = graph.call_function(torch.ops.npucompose_walk.watch.default, (given[0],))
            second = graph.call_function(aten.neg.default, (first,))
            if planned:
                enter(graph, _user_stream_label="s")
                graph.call_function(air.scope_exit.default, ())
            return (graph.call_function(torch.ops.npucompose_walk.watch.default, (second,)),)

        for planned in (False, True):
            made.clear()
            one, _ = walk(built(lambda graph, given, planned=planned: make(graph, given, planned), 1))
            assert one.run([torch.ones(2)])[0].tolist() == [-1, -1]
    assert seen == [False, True]


def test_scopes_events_and_waits_are_told_in_the_order_of_the_graph() -> None:
    """A wait for a value waits for the stream it was made on, unless that is the stream that waits."""

    def make(graph: fx.Graph, given: list[fx.Node]) -> Any:
        here = graph.call_function(aten.relu.default, (given[0],))
        enter(graph, _user_stream_label="side", _user_stream_priority="-1")
        graph.call_function(air.wait.default, ([here, given[0]],))
        there = graph.call_function(aten.abs.default, (here,))
        event = graph.call_function(air.record.default, ())
        enter(graph, _user_stream_label="other")
        graph.call_function(air.wait.default, ([event],))
        graph.call_function(air.scope_exit.default, ())
        enter(graph, _something="else")
        more = graph.call_function(aten.neg.default, (there,))
        graph.call_function(air.wait.default, ([more],))
        graph.call_function(air.scope_exit.default, ())
        graph.call_function(air.scope_exit.default, ())
        enter(graph, _user_stream_label="side")
        graph.call_function(air.scope_exit.default, ())
        return (there, more)

    made, device = walk(built(make, 1))
    x = torch.tensor([-1.0, 2.0])
    results = made.run([x])
    assert [r.tolist() for r in results] == [[0, 2], [0, -2]]
    once = [
        "default records event1",
        "default: aten.relu.default",
        "stream1 of priority -1 waits for event1",
        "stream1 of priority -1 waits for default",
        "stream1 of priority -1: aten.abs.default",
        "stream1 of priority -1 records event2",
        "stream2 waits for event1",
        "stream2 waits for event2",
        "stream1 of priority -1: aten.neg.default",
        "default waits for stream1 of priority -1",
        "default waits for stream2",
    ]
    assert device.told == once
    assert list(made.lanes) == ["side", "other"]
    device.told.clear()
    made.run([x])
    streams = {line.partition(" ")[0].rstrip(":") for line in device.told}
    assert streams == {"default", "stream1", "stream2"}, "the same streams in every run"


def test_an_attribute_is_found_by_its_path() -> None:
    inner = torch.nn.Module()
    inner.register_buffer("value", torch.tensor([3.0]))
    root = torch.nn.Module()
    root.add_module("inner", inner)
    graph = fx.Graph()
    node = graph.get_attr("inner.value")
    graph.output((graph.call_function(aten.mul.Tensor, (node, 2)),))
    module = fx.GraphModule(root, graph)
    assert attribute(module, module.graph.find_nodes(op="get_attr")[0]) is inner.value
    made, _ = walk(module)
    made.check()
    assert made.run([])[0].tolist() == [6]


def test_what_the_graph_alone_shows_to_be_no_recording_is_refused_before_anything_runs() -> None:
    made, device = walk(traced(lambda x: ((x + 1).nonzero(),), torch.ones(2)))
    with pytest.raises(CaptureError, match=r"cannot capture aten\.nonzero\.default"):
        made.check()
    assert device.told == []


def test_a_node_that_is_no_operator_is_refused() -> None:
    made, _ = walk(built(lambda graph, given: (graph.call_method("relu", (given[0],)),), 1))
    with pytest.raises(CaptureError, match="a node 'call_method' is not an operator"):
        made.check()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([torch.ones(1), torch.ones(1)], "an output that is a list; AOTAutograd returns a flat tuple"),
        (torch.ones(2).to_sparse(), r"an output of layout torch\.sparse_coo; only dense works"),
        (torch.ones(2), None),
        (None, None),
    ],
)
def test_an_output_that_is_no_dense_tensor_is_refused(value: Any, words: str | None) -> None:
    module = built(lambda graph, given: (3, graph.call_function(aten.relu.default, (given[0],))), 1)
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    node.meta["val"] = value
    made, _ = walk(module)
    if words is None:
        made.check()
        return
    with pytest.raises(CaptureError, match=words):
        made.check()


def test_random_numbers_of_a_generator_of_its_own_are_refused() -> None:
    generator = torch.Generator()

    def make(graph: fx.Graph, given: list[fx.Node], **named: Any) -> Any:
        return (graph.call_function(aten.bernoulli.default, (given[0],), named),)

    walk(built(make, 1))[0].check()
    module = built(lambda graph, given: make(graph, given), 1)
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    node.kwargs = {"generator": generator}
    with pytest.raises(CaptureError, match="it draws from a generator of its own; CUDA graphs know the default one"):
        walk(module)[0].run([torch.ones(2)])


def test_a_graph_without_an_output_is_no_graph() -> None:
    with pytest.raises(AssertionError, match="a graph ends with its output"):
        walk(fx.GraphModule({}, fx.Graph()))[0].run([])
