"""The order that a capture of the simulated NPU finds, alone: a wait or an alias is made false, and it says so.

What it says is what a run shows, no more and no less: kernels that touch one byte, one of them writing, unordered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume
from torch import fx

from npu_simulator.device import SimulatedDevice, SimulatedEvent
from npu_simulator.graph import SimulatedGraph
from npucompose.graphs.effects import control, nodes_in, stream_labels
from simulator_tests.asked import on_stream
from tests.facts.broken import (
    EXAMPLES,
    Planned,
    hold,
    races,
    with_an_early_record,
    with_another_name,
    without_a_wait,
)
from tests.sample_graphs import some_inputs


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


def captured(device: SimulatedDevice, module: fx.GraphModule) -> SimulatedGraph:
    """The planned graph as TorchAir runs it in a capture: streams entered, events recorded and waited for; each side
    stream begins behind the capture's begin, and is waited for before its end."""
    labels, given = stream_labels(module.graph), iter(some_inputs(module))
    streams, events = {"default": device.new_stream()}, dict[fx.Node, SimulatedEvent]()
    sides = {label: device.new_stream() for label in dict.fromkeys(labels.values()) if label != "default"}
    streams |= sides
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    graph = SimulatedGraph(device)
    with torch.no_grad(), on_stream(device, streams["default"]):
        graph.begin()
        for side in sides.values():
            wait_stream(device, side, streams["default"])
        for node in module.graph.nodes:
            label = labels.get(node, "default")
            stream = streams[label]
            kind = control(node)
            if kind == "record":
                events[node] = device.new_event()
                device.record(events[node], stream)
            elif kind == "wait":
                for event in nodes_in(node.args[0]):
                    device.wait(events[event], stream)
            elif node.op == "placeholder":
                interpreter.env[node] = next(given)
            elif node.op != "output" and kind is None:
                with on_stream(device, stream):
                    interpreter.env[node] = interpreter.run_node(node)
        for side in sides.values():
            wait_stream(device, streams["default"], side)
        graph.end()
    return graph


def wait_stream(device: SimulatedDevice, waiting: int, other: int) -> None:
    event = device.new_event()
    device.record(event, other)
    device.wait(event, waiting)


@EXAMPLES
@pytest.mark.parametrize("breaks", [without_a_wait, with_an_early_record, with_another_name])
def test_kernels_that_nothing_orders_any_more_are_told(
    breaks: Callable[[Planned], bool], examples: int, device: SimulatedDevice
) -> None:
    seen: Counter[bool] = Counter()

    def check(plan: Planned) -> None:
        assert captured(device, plan.module).outside == []
        assume(breaks(plan))
        try:
            shown = any(races(plan.module))
        except KeyError:  # an event that stands for nothing orders nothing, and nothing need race
            return
        seen[shown] += 1
        assert bool(captured(device, plan.module).outside) == shown

    hold(check, examples)
    assert seen[True] >= examples / 3, seen
