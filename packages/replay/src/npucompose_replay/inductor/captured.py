"""What is called in the place of what Inductor compiles for a GPU: CUDA graphs of its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from npucompose.graphs.recordable import name_of, refused_by_recordings
from npucompose.recorder import Lowered, LowerRequest
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.code import CudaCodeCache, HowOften
from npucompose_replay.front.graph_cache import lowered
from npucompose_replay.front.segments import prepared
from npucompose_replay.inductor.code import UnreadCode, launches
from npucompose_replay.inductor.unfused import copied

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend
    from npucompose_replay.inductor.subjects import Subject


@define(kw_only=True, eq=False)
class CapturingRecorder:
    """A `targets.subjects.Recorder` for the graphs of one backend."""

    backend: Backend
    how: Callable[[LowerRequest], HowOften]
    _graph: fx.GraphModule | None = field(default=None, init=False)

    def wants(self, subject: Subject) -> bool:
        """Not where Inductor's kernels would read other values; the graph is copied, because Inductor changes it."""
        self._graph = copied(subject.graph_module)
        return not subject.is_for_operators

    def gave_up(self, subject: Subject) -> None:
        """The copy that `wants` made is there."""

    def lowered(self, subject: Subject, compiled: Any) -> Lowered:
        graph_module, self._graph = self._graph, None
        assert graph_module is not None
        request = prepared(subject.request(self.backend, graph_module))
        if compiled is None:
            return lowered(CudaCache(request, **self.how(request)), "cuda")
        kernels, why_not = 0, _why_not(request.graph_module.graph)
        try:
            kernels = launches(compiled)
        except UnreadCode as why:
            why_not = why_not or f"its code {why}"
        return CudaCodeCache(
            request,
            compiled,
            kernels=kernels,
            why_not=why_not,
            kept=subject.unfrozen,
            how=self.how(request),
        )


def _why_not(graph: fx.Graph) -> str:
    """What in the graph needs the host, though Inductor may have found a way around it: nothing in a CUDA graph
    tells a kernel that was started from one that only the host ran."""
    found = next(refused_by_recordings(graph, "cuda"), None)
    return "" if found is None else f"{name_of(found[0])} is in it: {found[1].rstrip('.')}"
