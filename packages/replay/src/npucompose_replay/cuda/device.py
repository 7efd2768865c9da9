"""What a recording needs of its device: calls of torch.cuda, shared memory, a graph run on streams, its results.

All that is not tested without a GPU lies in `Cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from attrs import define, field
from torch import fx
from torch._ops import OpOverload

from npucompose.graphs import is_planned
from npucompose.graphs.effects import Scope, control, nodes_in
from npucompose_replay import gate
from npucompose_replay.capture.recorder import attribute, last_uses
from npucompose_replay.memory.arena import Turns


class Cuda:
    """Device `cuda:index`. Its streams have wait_stream and wait_event, events have record, graphs have replay."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)

    def stream(self, priority: int = 0) -> Any:
        return torch.cuda.Stream(device=self._device, priority=priority)

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        return torch.cuda.Event()

    def pool(self) -> Any:
        """A handle of memory that captures share."""
        return torch.cuda.graph_pool_handle()

    def graph(self) -> Any:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def capturing(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        """What is called inside on `stream` is recorded and not executed; random numbers stay where they are.

        # Note [Workspaces of cuBLAS]
        torch keeps one for each stream until somebody lets all of them go, as torch's own CUDA graphs do around each
        recording (cudagraph_trees.py, clear_cublas_manager). A graph that was captured with one that lay outside its
        pool would write to memory of others then. So each capture finds none, asks for one in its own pool, which
        lives as long as the graph, and leaves none behind.
        """
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        finally:
            torch._C._cuda_clearCublasWorkspaces()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on this device."""
        return tensor.device == self._device

    def used_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """The tensor's memory, once it is freed, goes to nobody else before what `stream` was given by then is done."""
        tensor.record_stream(stream)


@define(eq=False)
class SharedPool:
    """Memory for what recordings compute in between; their inputs and outputs lie outside.

    Recordings that share it never run at once: the host takes `turns`, and a stream waits for the one before.
    """

    device: Cuda
    handle: Any = field(init=False)
    turns: Turns = field(factory=Turns, init=False)
    stream: Any = field(init=False)
    """On which all of them are captured: the allocator gives a stream the memory that was freed on it."""
    lanes: dict[str, Any] = field(factory=dict, init=False)
    """Side streams of plans, by label, for the same reason."""
    _left_on: Any = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.handle, self.stream = self.device.pool(), self.device.stream()

    def enter(self, home: Any) -> None:
        """What comes now on stream `home` uses the memory."""
        if self._left_on is not None and self._left_on != home:
            home.wait_stream(self._left_on)
        self._left_on = home


@define(kw_only=True, eq=False)
class Walk:
    """`run(inputs)` on the stream that is current; side streams fork from it and have joined it when `run` returns.

    # Note [Memory of several streams]
    torch's allocator gives memory back to the stream that asked for it, at once, whoever still reads it on another
    one. In a planned graph every value therefore lives until the streams have joined.
    """

    graph_module: fx.GraphModule
    device: Cuda
    lanes: dict[str, Any] = field(factory=dict)
    """Side streams, by label; the same ones in every run."""
    at: fx.Node = field(init=False)
    """The node that a run has come to."""

    @property
    def kernels(self) -> int:
        return sum(isinstance(node.target, OpOverload) for node in self.graph_module.graph.nodes)

    def refused(self, reason: str) -> gate.Refused:
        """Of where the run is."""
        return gate.refused(self.at, reason)

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


# -- results
