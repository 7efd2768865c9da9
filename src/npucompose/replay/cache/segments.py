"""A graph in parts: recordings, and between them the operators that no recording can hold, run as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import fx

from npucompose.graphs import is_planned
from npucompose.graphs.effects import is_getitem
from npucompose.graphs.recordable import outside_of, refused_by_recordings
from npucompose.replay.cache.partition import Part, parts_of
from npucompose.replay.capture import reinplace
from npucompose.replay.capture.mutating import is_functional_call, write_in_place
from npucompose.replay.interface import LowerRequest
from npucompose.replay.refusals import Refused
from npucompose.replay.watching import SeenCall, note, watchers
from npucompose.schema.calls import CallStatistics
from npucompose.schema.partition import Partition

if TYPE_CHECKING:
    from npucompose.replay.cache.graph_cache import GraphCache
    from npucompose.replay.interface import Recording

Make = Callable[[LowerRequest], "GraphCache"]


def prepared(request: LowerRequest) -> LowerRequest:
    """The request with a graph in which operators that AOTAutograd made functional write in place again."""
    module = request.graph_module
    if not any(is_functional_call(node) for node in module.graph.nodes):
        return request
    return attrs.evolve(request, graph_module=_written_in_place(module))


def _written_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """A copy: what the passes left is kept as it is, for those who look at it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copy = fx.GraphModule(module, graph)
    write_in_place(copy)
    return copy


def planned(module: fx.GraphModule, device: str) -> Partition:
    """How a graph will be cut, as far as it tells by itself."""
    whole = _written_in_place(module) if any(map(is_functional_call, module.graph.nodes)) else module
    refused = dict(refused_by_recordings(whole.graph, device))
    if not refused:
        return Partition()
    return Partition(
        segments=sum(part.recorded for part in parts_of(whole, refused)),
        outside=tuple(outside_of(node, reason) for node, reason in refused.items()),
    )


def nodes_of(refusal: Refused, graph: fx.Graph) -> dict[fx.Node, str]:
    """{node that runs as it is: why}: the one that was refused, or the readers of the input that was."""
    if refusal.node is not None:
        return {refusal.node: refusal.reason}
    given = graph.find_nodes(op="placeholder")[refusal.index]
    return {node: refusal.reason for node in given.users if node.op == "call_function" and not is_getitem(node)}


class Segmented:
    """Called with the list of a graph's inputs, as a GraphCache; each recorded part has a GraphCache of its own.

    What crosses from part to part are ordinary tensors and numbers; a number that data decided (an unbacked symbol)
    belongs to the signature of the parts that read it. `refused` are the nodes that run as they are, with the reasons.
    """

    _boxed_call = True

    def __init__(
        self,
        request: LowerRequest,
        refused: Mapping[fx.Node, str],
        make: Make,
        *,
        clone_output: bool = False,
    ) -> None:
        graph = request.graph_module.graph
        _copy_back_early(graph)
        self._placeholders = graph.find_nodes(op="placeholder")
        self._static = frozenset(node for i, node in enumerate(self._placeholders) if i in request.static_inputs)
        self._clone = clone_output
        self._outside = tuple(outside_of(node, reason) for node, reason in refused.items())
        self._steps = [(part, self._callable(part, request, make)) for part in parts_of(request.graph_module, refused)]
        self.caches = [call for part, call in self._steps if part.recorded]

    def _callable(self, part: Part, request: LowerRequest, make: Make) -> Any:
        if not part.recorded:
            forward = part.module.forward
            return lambda values: forward(*values)
        static = frozenset(i for i, node in enumerate(part.inputs) if node in self._static)
        examples = tuple(node.meta.get("val") for node in part.inputs)
        return make(attrs.evolve(request, graph_module=part.module, example_inputs=examples, static_inputs=static))

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        if watchers:
            note(SeenCall(None, list(inputs), [], 0, self.partition().words))
        values: dict[fx.Node, Any] = dict(zip(self._placeholders, inputs, strict=True))
        made: Any = ()
        for part, call in self._steps:
            made = call([values[node] for node in part.inputs])
            values.update(zip(part.outputs, made, strict=False))
            for node in part.dying:
                values.pop(node, None)
        return self._cloned(made, inputs) if self._clone else list(made)

    def _cloned(self, outputs: Iterable[Any], inputs: Sequence[Any]) -> list[Any]:
        given = {_storage(value) for value in inputs if isinstance(value, torch.Tensor)}
        return [o.clone() if isinstance(o, torch.Tensor) and _storage(o) not in given else o for o in outputs]

    @property
    def captured(self) -> Sequence[Recording]:
        """The recordings of all parts."""
        return [recording for cache in self.caches for recording in cache.recordings()]

    @property
    def statistics(self) -> CallStatistics:
        """How the calls of the recorded parts ran."""
        return sum((cache.statistics for cache in self.caches), CallStatistics())

    def recordings(self) -> Sequence[Recording]:
        return self.captured

    def partition(self) -> Partition:
        inner = [cache.partition() for cache in self.caches]
        return Partition(
            segments=sum(one.segments for one in inner),
            outside=(*self._outside, *(node for one in inner for node in one.outside)),
        )


def _copy_back_early(graph: fx.Graph) -> None:
    """Where an update of an input may happen in the input itself, in the part that makes it: that part copies it back.

    AOTAutograd copies at the end of the graph, where an update that lies in another part would need memory of its own.
    """
    if is_planned(graph):  # other streams may still read the input
        return
    found = reinplace.find(graph, frozenset())
    for copy in found.dropped:
        copy.args[1].append(copy)  # type: ignore[union-attr]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
