"""Regions of a graph that run under a scope of their own: which operators, and what they are told. Knows no graph."""

from __future__ import annotations

from attrs import frozen

from npucompose.schema.options import option
from npucompose.schema.streams import Cores, Match


@frozen(kw_only=True)
class CoreRegion(Cores):
    """`{aicore: 8, vectorcore: 16, match: {module: "re:.*shared_expert.*"}}`: what matches may use so many cores."""

    match: Match


@frozen(kw_only=True)
class SuperKernelRegion:
    """`{scope: attention, match: {module: "re:.*attn"}}`: what matches becomes one kernel."""

    scope: str = option(doc="name of the super kernel; a second run of matching operators gets the name and _1")
    options: str = option("", "as GE takes them: `feed-sync-all=1:stream-fusion=1`")
    match: Match

    def __attrs_post_init__(self) -> None:
        if not self.scope:
            raise ValueError("'scope' must be a name: with an empty one GE takes operators out of a super kernel")
