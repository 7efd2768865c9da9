"""Calling a graph's operators one after the other, each on the stream that the plan in the graph names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx
from torch._ops import OpOverload

from npucompose.graphs.effects import nodes_in
from npucompose.graphs.scopes import Scope, control, is_planned
from npucompose.replay import gate
from npucompose.replay.capture.recorder import attribute, last_uses
from npucompose.replay.cuda.device import Device


@define(kw_only=True, eq=False)
class Walk:
    """`run(inputs)` on the stream that is current; side streams fork from it and have joined it when `run` returns.

    # Note [Memory of several streams]
    torch's allocator gives memory back to the stream that asked for it, at once, whoever still reads it on another
    one. In a planned graph every value therefore lives until the streams have joined.
    """

    graph_module: fx.GraphModule
    device: Device
    lanes: dict[str, Any] = field(factory=dict)
    """Side streams, by label; the same ones in every run."""
    at: fx.Node = field(init=False)
    """The node that a run has come to."""

    def check(self) -> None:
        """Raise CaptureError for what the graph alone shows that no recording can hold, before anything has run."""
        for node in self.graph_module.graph.nodes:
            if node.op == "output":
                _check_outputs(node)
            elif node.op != "placeholder":
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
                _check(node, args, kwargs)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        graph = self.graph_module.graph
        home = self.device.current_stream()
        dying = {} if is_planned(graph) else last_uses(graph)
        env: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
        scopes: list[Any] = []
        forked: dict[str, Any] = {}
        made_on: dict[fx.Node, Any] = {}
        begin = self.device.event()
        begin.record(home)
        for node in graph.nodes:
            self.at = node
            current = scopes[-1] if scopes else home
            kind = control(node)
            if kind == "scope_enter":
                scopes.append(self._lane(Scope.from_node(node), current, forked, begin))
            elif kind == "scope_exit":
                scopes.pop()
            elif kind == "record":
                env[node] = self.device.event()
                env[node].record(current)
            elif kind == "wait":
                self._wait(current, node, env, made_on)
            elif node.op == "output":
                for lane in forked.values():
                    home.wait_stream(lane)
                return [env[value] if isinstance(value, fx.Node) else value for value in _returned(node)]
            elif node.op != "placeholder":
                with self.device.on(current):
                    env[node] = self._call(node, env)
                made_on[node] = current
            for dead in dying.get(node, ()):
                env.pop(dead, None)
        raise AssertionError("a graph ends with its output")

    def _lane(self, scope: Scope, current: Any, forked: dict[str, Any], begin: Any) -> Any:
        if scope.stream is None:
            return current
        if scope.stream not in forked:
            lane = self.lanes.get(scope.stream) or self.device.stream(scope.priority)
            self.lanes[scope.stream] = forked[scope.stream] = lane
            lane.wait_event(begin)
        return forked[scope.stream]

    def _wait(self, current: Any, node: fx.Node, env: dict[fx.Node, Any], made_on: dict[fx.Node, Any]) -> None:
        for awaited in nodes_in(node.args[0]):
            if control(awaited) == "record":
                current.wait_event(env[awaited])
            elif awaited in made_on and made_on[awaited] is not current:
                current.wait_stream(made_on[awaited])

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return attribute(self.graph_module, node)
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        _check(node, args, kwargs)
        target: Any = node.target
        return target(*args, **kwargs)


def _check(node: fx.Node, args: Any, kwargs: Any) -> None:
    gate.check_target(node)
    target: Any = node.target
    if isinstance(target, OpOverload):
        gate.check_operator(node, target, args, kwargs)
        if any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
            raise gate.refused(node, "it draws from a generator of its own; CUDA graphs know the default one.")


def _check_outputs(output: fx.Node) -> None:
    for value in _returned(output):
        made = value.meta.get("val") if isinstance(value, fx.Node) else value
        if isinstance(made, (list, tuple)):
            raise gate.refused(output, "an output that is a list; AOTAutograd returns a flat tuple.")
        if isinstance(made, torch.Tensor) and made.layout is not torch.strided:
            raise gate.refused(output, f"an output of layout {made.layout}; only dense works.")


def _returned(output: fx.Node) -> Sequence[Any]:
    values: Any = output.args[0]
    return values if isinstance(values, (list, tuple)) else [values]
