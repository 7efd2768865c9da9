"""Puts kernels on streams, as `conf/streams` asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class StreamPlan(Pass):
    """Give independent chains streams of their own, and the events that their data needs.

    before:  mm = x @ x;  a = abs(x);  s = a - x;  return mm + s
    after:   mm = x @ x
             scope_enter(['_user_stream_label'], ['stream1']);  a = abs(x);  s = a - x;  r = record();  scope_exit()
             wait([r]);  return mm + s

    What is asked for comes from the experiment's `streams` (auto, none, an explicit plan). A plan that matches nothing,
    goes in a circle or cannot be made safe is refused. A planned graph stays as it is.
    """

    name: ClassVar[str] = "stream_plan"
    after: ClassVar[tuple[str, ...]] = ("cse", "dead_code", "remove_noop")

    streams: Streams = option(factory=Streams, doc="what to plan", from_experiment="streams")

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.streams import apply

        return apply(graph, self.streams, can)
