"""What a compiler made of one graph, a recording for each signature it is called with, whatever device makes those.

What cannot be recorded is called as the compiler made it, from then on, and `partition` says why; with
`partial=refuse` it is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npucompose.errors import CaptureError
from npucompose.recorder import LowerRequest, RunAsEager
from npucompose.results.graphs import Outside, Partition
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.gate import Refused
from npucompose_replay.interface import SeenCall, note, watchers
from npucompose_replay.state import have_tangents


class AsCompiled(GraphCache):
    """A GraphCache of which `compiled(list of inputs)`, which empties its list, makes the calls without a recording.

    Which device records it says another subclass of GraphCache, if it stands behind this one.
    """

    def __init__(self, request: LowerRequest, compiled: Callable[[list[Any]], Any], why_not: str, **how: Any) -> None:
        """`why_not` says why it cannot be recorded, in words that go on from "because"; empty where it can be tried.
        CaptureError for the former with `partial=refuse`."""
        super().__init__(request, **how)
        if why_not and self.partial == "refuse":
            raise CaptureError(f"cannot record what was compiled: {why_not}. compile.partial=cut calls it as it is.")
        self.compiled = compiled
        self._outside = Outside.whole_graph(why_not) if why_not else None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self._outside is None:
            return super().__call__(inputs)
        if self.overlapping.meet(inputs):
            raise RunAsEager
        if have_tangents(inputs):
            return self._as_traced(inputs)
        self._eager += 1
        given = list(inputs) if watchers else []
        outputs = self._as_it_is(inputs)
        if watchers:
            words = f"Inductor's wrapper calls its kernels, because {self._outside.reason}"
            note(SeenCall(None, given, outputs, self.capture_limit, instead=words))
        return outputs

    def _as_traced(self, inputs: list[Any]) -> list[Any]:
        if self.request.eager_at_hand:
            raise RunAsEager
        return super()._as_traced(inputs)

    def _as_it_is(self, inputs: list[Any]) -> list[Any]:
        return list(self.compiled(list(inputs)))

    def _cut(self, refusal: Refused, inputs: list[Any]) -> list[Any]:
        """All calls are the compiler's own from now on."""
        node, reason = refusal.node, refusal.reason
        self._outside = (
            Outside.whole_graph(reason)
            if node is None
            else Outside(node=node.name, operator=str(node.target), reason=reason)
        )
        self.clear()
        return refusal.outputs if refusal.outputs is not None else self._as_it_is(inputs)

    def partition(self) -> Partition:
        return super().partition() if self._outside is None else Partition(segments=0, outside=(self._outside,))
