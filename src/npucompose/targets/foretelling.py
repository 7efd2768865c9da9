"""Calls of graphs that are only read: what a capture of each, and this machine's recording of it, would take."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen
from torch import fx

from npucompose.errors import CaptureError
from npucompose.graphs.effects import group_of
from npucompose.npu.capture.counts import CaptureCounts
from npucompose.npu.capture.pool import PoolRequests, requests_of, symbols_in
from npucompose.placement import MemoryBlock, place
from npucompose.recorder import PlannedRecording

if TYPE_CHECKING:
    from npucompose.targets.compilation import Compilation

Planned = Callable[[fx.GraphModule, Sequence[Any]], "PlannedRecording | None"]
"""`Target.planned` in one mode."""


@frozen(kw_only=True)
class ForetoldCall:
    """One graph, called with inputs of one signature."""

    graph: str
    counts: CaptureCounts
    requests: PoolRequests
    """Of the pool of an NPU's capture."""
    recording: PlannedRecording | None
    """What the target's own recording would hold; None where it makes none, or `why_none`."""
    why_none: str | None
    communicators: frozenset[str]
    """Names of the process groups that it uses."""
    collectives: int


class Foretelling:
    """`watched(…)` is called in a graph's place; each signature of each graph is looked at once."""

    def __init__(self) -> None:
        self.calls: list[ForetoldCall] = []
        self.seconds = 0.0
        """What looking took."""

    def watched(self, planned: Planned, compilation: Compilation, graph_module: fx.GraphModule) -> Callable[..., Any]:
        """`graph_module` as the passes left it; what is called is the same, to be stripped of its streams."""
        whole = fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
        whole.meta.update(graph_module.meta)
        seen: set[tuple[Any, ...]] = set()

        def call(*inputs: Any) -> Any:
            begun = perf_counter()
            key = tuple(map(_form, inputs))
            if key not in seen:
                seen.add(key)
                self.calls.append(_foretold(planned, compilation, whole, inputs))
            self.seconds += perf_counter() - begun
            return graph_module.forward(*inputs)

        return call


def _form(value: Any) -> Any:
    """Equal for inputs that one recording may serve."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, str(value)
    try:
        return value.dtype, value.device, value.shape, value.stride()
    except RuntimeError:  # not every kind of tensor has both
        return type(value), str(value.layout)


def _foretold(
    planned: Planned, compilation: Compilation, graph_module: fx.GraphModule, inputs: Sequence[Any]
) -> ForetoldCall:
    graph = graph_module.graph
    recording, why_none = None, None
    try:
        recording = planned(graph_module, inputs)
    except CaptureError as error:
        why_none = str(error)
    groups = [name for node in graph.nodes if (name := group_of(node)) is not None]
    return ForetoldCall(
        graph=compilation.id,
        counts=compilation.counts,
        requests=requests_of(graph, dict(symbols_in(graph, inputs))),
        recording=recording,
        why_none=why_none,
        communicators=frozenset(groups),
        collectives=len(groups),
    )


def recording_of(requests: PoolRequests) -> PlannedRecording:
    """The same as a target's own plan says, concluded from a graph without a run of it, and so not exact: kernels that
    need memory of their own, or that give results anew, show in a run only."""
    owner: list[int] = []
    for at, request in enumerate(requests.requests):
        owner.append(at if request.instead is None or request.last is None else owner[request.instead])
    blocks = {
        at: MemoryBlock(nbytes=one.nbytes, first=one.first, last=one.first if one.last is None else one.last)
        for at, one in enumerate(requests.requests)
        if one.last is not None and owner[at] == at
    }
    for at, one in enumerate(requests.requests):
        if one.last is not None and owner[at] != at:
            blocks[owner[at]] = evolve(blocks[owner[at]], last=one.last)
    placement = place(list(blocks.values()))
    spans = tuple((at, at + one.nbytes) for one, at in zip(blocks.values(), placement.offsets, strict=True))
    return PlannedRecording(spans=spans, own_bytes=sum(r.nbytes for r in requests.requests if r.last is None))
