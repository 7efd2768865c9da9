"""What a recording needs of its device: calls of torch.cuda, shared memory, a graph run on streams, its results.

All that is not tested without a GPU lies in `Cuda`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx
from torch._ops import OpOverload

from npucompose.errors import CaptureError
from npucompose.graphs import Aliases, is_planned
from npucompose.graphs.effects import Scope, control, nodes_in
from npucompose.replay import gate
from npucompose.replay.capture.recorder import attribute, last_uses
from npucompose.replay.memory.arena import Turns
from npucompose.replay.memory.results import ResultBytes, Static, handed_out
from npucompose.replay.operands import StorageLayout, layout_of, relative
from npucompose.replay.plan import Elsewhere, Literally, SameAsInput, SameAsOutput, ViewOfInput


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


@frozen(kw_only=True)
class Piece:
    """Memory of results that share theirs: in eager a write to one is seen in the other, and so it is here."""

    nbytes: int
    device: torch.device


@frozen(kw_only=True)
class InPiece:
    """An output that the graph makes: a tensor over piece `piece`."""

    piece: int
    layout: StorageLayout


CudaOutput = Elsewhere | InPiece


@frozen(kw_only=True, eq=False)
class Results:
    """How each output of a graph goes out, found on a run of it on real values."""

    outputs: tuple[CudaOutput, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def from_run(
        cls, graph_module: fx.GraphModule, aliases: Aliases, inputs: Sequence[Any], values: Sequence[Any]
    ) -> Results:
        """`values` is what the graph made of `inputs`."""
        finder = _Finder(graph_module=graph_module, aliases=aliases, inputs=inputs)
        finder.found = [finder.output(k, values) for k in range(len(values))]
        pieces = finder.pieces()
        return cls(outputs=tuple(finder.found), pieces=tuple(pieces))

    def handed_out(self, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> list[Any]:
        """All outputs of a call, `made` for those that are InPiece, in order."""
        rest = iter(made)
        handed: list[Any] = []
        for output in self.outputs:
            handed.append(next(rest) if isinstance(output, InPiece) else handed_out(output, inputs, handed))
        return handed


@define(kw_only=True, eq=False)
class _Finder:
    graph_module: fx.GraphModule
    aliases: Aliases
    inputs: Sequence[Any]
    _groups: dict[int, list[tuple[int, torch.Tensor]]] = field(factory=dict)
    """{address of a storage: the (output, value) that lie in it}"""
    found: list[CudaOutput] = field(init=False)

    def output(self, k: int, values: Sequence[Any]) -> CudaOutput:
        value = values[k]
        if not isinstance(value, torch.Tensor):
            return Literally(value=value)
        earlier = next((n for n in range(k) if values[n] is value), None)
        if earlier is not None:
            return SameAsOutput(index=earlier)
        given = self._inputs_behind(k, value)
        same = next((i for i in given if value is self.inputs[i]), None)
        if same is not None:
            return SameAsInput(index=same)
        if given:
            return ViewOfInput(index=given[0], layout=relative(value, self.inputs[given[0]]))
        if any(_address(value) == _address(held) for held in self._attributes()):
            return Literally(value=value)
        self._groups.setdefault(_address(value) or -1 - k, []).append((k, value))
        return InPiece(piece=-1, layout=layout_of(value))

    def _inputs_behind(self, k: int, value: torch.Tensor) -> list[int]:
        """Inputs whose memory the value has, first those that the graph says: inputs may share memory themselves."""
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        returned: Any = self.graph_module.graph.output_node().args[0]
        node = returned[k] if isinstance(returned, (list, tuple)) else returned
        if node in placeholders:
            return [placeholders.index(node)]
        tensors = [i for i, given in enumerate(self.inputs) if isinstance(given, torch.Tensor)]
        sharing = [i for i in tensors if value.numel() and _address(self.inputs[i]) == _address(value)]
        return sorted(sharing, key=lambda i: not self.aliases.shares(node, placeholders[i]))

    def _attributes(self) -> list[torch.Tensor]:
        values = [attribute(self.graph_module, node) for node in self.graph_module.graph.find_nodes(op="get_attr")]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return [value for value in tensors if value.layout is torch.strided and value.numel()]

    def pieces(self) -> list[Piece]:
        """One for each storage that results lie in; `found` then says where in it, which is where they lay: AOTAutograd
        makes views of other tensors by the offset of a result."""
        made: list[Piece] = []
        for group in self._groups.values():
            layouts = [layout_of(value) for _, value in group]
            for (k, _), layout in zip(group, layouts, strict=True):
                self.found[k] = InPiece(piece=len(made), layout=layout)
            made.append(Piece(nbytes=max(one.span()[1] for one in layouts), device=group[0][1].device))
        return made


class ResultMemory:
    """Where one capture writes its results. `fill(values)` within the capture, then `count()`, then hand out."""

    def __init__(self, results: Results) -> None:
        self._outputs = [output for output in results.outputs if isinstance(output, InPiece)]
        self._at = [k for k, output in enumerate(results.outputs) if isinstance(output, InPiece)]
        with torch.inference_mode(False):
            self.tensors = [torch.empty(p.nbytes, dtype=torch.uint8, device=p.device) for p in results.pieces]
        """All memory."""
        self._memory = list(map(ResultBytes, self.tensors))
        self._statics = [Static(o.piece, o.layout).lay(self._memory[o.piece].storage) for o in self._outputs]
        self._laid = [[s.tensor for s in self._statics if s.buffer == piece] for piece in range(len(self._memory))]
        """In each piece."""
        self._whole = [len(self._laid[o.piece]) == 1 and _is_dense(o.layout) for o in self._outputs]
        """Results that `clone` copies as they lie, at the beginning of their memory."""

    def fill(self, values: Sequence[Any]) -> None:
        """Put what a run returned where it belongs."""
        for k, output, mine in zip(self._at, self._outputs, self._statics, strict=True):
            value, wanted = values[k], output.layout
            got = layout_of(value)
            if (got.dtype, got.shape, got.stride) != (wanted.dtype, wanted.shape, wanted.stride):
                raise CaptureError(
                    f"cannot capture output {k}: it was {wanted} in the first call of this signature and is {got} now, "
                    "so its form depends on data."
                )
            _flat(mine.tensor, wanted).copy_(_flat(value, wanted))

    def count(self) -> None:
        """Take the references that there are now for our own."""
        for memory in self._memory:
            memory.count()

    def is_held(self) -> bool:
        """Whether a result of an earlier call, or a view of one, lives on."""
        return any(memory.is_held(laid) for memory, laid in zip(self._memory, self._laid, strict=True))

    def is_read(self, inputs: Sequence[Any]) -> bool:
        return any(memory.is_read(inputs) for memory in self._memory)

    def themselves(self) -> list[torch.Tensor]:
        """The results where they lie, each in a tensor object of the caller's own."""
        return [static.given_out() for static in self._statics]

    def copies(self) -> list[torch.Tensor]:
        """The results in new memory, which shares as theirs does."""
        copied: dict[int, torch.UntypedStorage] = {}
        made: list[torch.Tensor] = []
        for static, whole in zip(self._statics, self._whole, strict=True):
            if whole:
                made.append(static.tensor.clone())
                continue
            if static.buffer not in copied:
                copied[static.buffer] = self.tensors[static.buffer].clone().untyped_storage()
            made.append(static.layout.over(copied[static.buffer]))
        return made


def _flat(tensor: torch.Tensor, layout: StorageLayout) -> torch.Tensor:
    """What of a tensor is copied: each element once, or its whole span where it overlaps itself."""
    once = layout.collapsed()
    if once.overlaps_itself():
        low, high = layout.span()
        return tensor.as_strided(((high - low) // layout.dtype.itemsize,), (1,))
    return tensor if once == layout else tensor.as_strided(once.shape, once.stride)


def _is_dense(layout: StorageLayout) -> bool:
    """Its elements fill its memory up to the last, each place once."""
    low, high = layout.span()
    filled = high - low == math.prod(layout.shape) * layout.dtype.itemsize
    return filled and not (layout.offset or layout.overlaps_itself() or layout.conj or layout.neg)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
