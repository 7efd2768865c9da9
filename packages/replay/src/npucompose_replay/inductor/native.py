"""What is called in the place of what Inductor compiles for the CPU: recordings of its kernels, or of the kernels that
it would fuse, where its own would read other values or it cannot compile the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field
from torch.fx import Graph, GraphModule

from npucompose.errors import NpuComposeError
from npucompose.recorder import Lowered, LowerRequest
from npucompose_replay.executor import build
from npucompose_replay.front.generated_cache import GeneratedCache
from npucompose_replay.front.graph_cache import GraphCache, lowered
from npucompose_replay.inductor.code import InductorCode, UnreadCode
from npucompose_replay.inductor.unfused import Untraced, copied

if TYPE_CHECKING:
    from npucompose.targets.backend import Backend
    from npucompose_replay.front.generated_cache import HowOften
    from npucompose_replay.inductor.subjects import Subject
    from npucompose_replay.kept.graphs import KeptGraph

NO_REPLAYER = "there is no native replayer here"


@define(kw_only=True, eq=False)
class NativeRecorder:
    """A `targets.subjects.Recorder` for one graph of Dynamo's."""

    backend: Backend
    how: Callable[[LowerRequest], HowOften]
    native: bool
    kept: KeptGraph | None = None
    """Is to keep what is recorded first."""
    _unfused: GraphModule | None = field(default=None, init=False)

    def wants(self, subject: Subject) -> bool:
        """Not where Inductor's kernels would read other values."""
        self._unfused = _as_it_is(subject) if subject.is_for_operators else None
        return self._unfused is None

    def gave_up(self, subject: Subject) -> None:
        self._unfused = subject.unfused()

    def lowered(self, subject: Subject, compiled: Any) -> Lowered:
        if self.native and subject.watch is not None:
            subject.watch.checked_by(build.load().Weights())
        if self.kept is not None:
            self.kept.compiled(subject.key, subject.changed, subject.unfrozen)
        unfused, self._unfused = self._unfused, None
        if compiled is None:
            assert unfused is not None
            request = self._request(subject, unfused)
            return lowered(GraphCache(request, **self.how(request)), "cpu")
        try:
            code = InductorCode.of(compiled) if self.native else NO_REPLAYER
        except UnreadCode as why:
            code = f"its code {why}"
        request = self._request(subject, GraphModule({}, Graph()))
        return GeneratedCache(request, compiled, code, **self.how(request))

    def _request(self, subject: Subject, graph_module: GraphModule) -> LowerRequest:
        return evolve(
            subject.request(self.backend, graph_module), recorded=None if self.kept is None else self.kept.keep
        )


def _as_it_is(subject: Subject) -> GraphModule:
    """The graph that is recorded where Inductor has no part in it: with nothing taken apart, if there is such a one."""
    try:
        return subject.unfused()
    except (Untraced, NpuComposeError):
        return copied(subject.graph_module)
