"""What captures take of a device, and what fits: the report's `capture.budget`.

The packages `capture` and `report` read and write these; nothing here knows a rule. A figure of which a part is
unknown is an interval.
"""

from __future__ import annotations

from attrs import field, frozen


@frozen(kw_only=True)
class CaptureRange:
    """At least `low`, at most `high`; null: nobody knows a bound."""

    low: int
    high: int | None

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low:,} or more"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


@frozen(kw_only=True)
class CapturedSize:
    """What one size adds."""

    size: int
    streams: CaptureRange
    tasks: CaptureRange
    events: CaptureRange
    nbytes: CaptureRange | None
    """Of an NPU's pool that the sizes share, the largest captured first; null: nobody traced this size."""


@frozen(kw_only=True)
class CaptureChange:
    """`CaptureChange(what="graph_0 with one stream fewer", …)`."""

    what: str
    streams: CaptureRange
    """Freed with all sizes, at the low ends of before and after and at the high ends."""
    events: CaptureRange
    sizes: CaptureRange
    """How many would then fit."""


@frozen(kw_only=True)
class CaptureBudgetFacts:
    """Of the captures of all sizes together, against one SoC."""

    soc: str
    sizes_of: str
    """What the sizes are sizes of: `x.0`, `calls`, `extensions.vllm`."""
    sizes: tuple[CapturedSize, ...]
    """Ascending."""
    graphs: int
    """FX graphs, each of which is a capture for each size."""
    kernels: CaptureRange
    """Of one size."""
    streams: CaptureRange
    tasks: CaptureRange
    events: CaptureRange
    nbytes: CaptureRange | None
    available: CaptureRange
    """Streams that the SoC has for captures."""
    certain: tuple[int, ...]
    """The largest set of sizes that fits whatever the unknown parts are."""
    possible: tuple[int, ...]
    """The largest that fits where all of them are at their best."""
    recorded_bytes: int | None
    """What the target's own recordings of these sizes hold in one pool; null: it makes none, or `why_not_recorded`."""
    recorded_apart_bytes: int | None
    """The same with a pool for each recording."""
    why_not_recorded: str | None
    unknown: tuple[str, ...]
    changes: tuple[CaptureChange, ...] = field(factory=tuple)
    """The one that frees most first."""
