"""Will a model be captured? What a capture forbids and the model does: rule, code, line, fix; and how sure that is.

The packages `capture` and `report` read and write these; nothing here knows a rule. Standing:

- `proven`: the model ran under the simulated runtime's capture, which refuses the call as the public rule says; of a
  graph break: torch.compile itself made it;
- `derived`: concluded from the FX graph and the configuration;
- `unknown`: no public rule decides it, or nobody could look; `what` then says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from npucompose.npu.static_graph.records import Certainty


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


CaptureVerdict = Literal["captures", "does not capture", "captures with races", "unknown"]


@frozen(kw_only=True)
class CaptureFinding:
    """One thing that a capture forbids: `CaptureFinding(rule="host_read", code=107027, what="x.item()", …)`."""

    rule: str
    """A row of capture/rules.yaml."""
    code: int | None
    """What the device would answer; null where torch_npu or torch.compile refuses before it is asked."""
    also: tuple[int, ...] = ()
    """Further codes that the same line leaves in a device's log."""
    what: str
    """What the model does, one clause."""
    source: str | None = None
    """Where the model says it: `model.py:12 in forward: if x.sum() > 0:`; null where it was not recorded."""
    node: str | None = None
    """Name of the FX node, of findings that a graph shows."""
    graph: str | None = None
    """Id of the graph (report.json's graphs.id)."""
    fix: str
    standing: Certainty
    outside: bool = False
    """torch.compile cuts the model here: it runs between captures, where it is legal."""

    @property
    def words(self) -> str:
        """`host_read (107027) at m.py:9 in forward: x.item(); fix: torch.where(…)`."""
        code = "" if self.code is None else f" ({self.code})"
        return f"{self.rule}{code}" + (f" at {self.source}" if self.source else "") + f"; fix: {self.fix}"


@frozen(kw_only=True)
class CaptureLegality:
    """The verdict on one call of the model, the first, as a single capture."""

    verdict: CaptureVerdict
    certainty: Certainty
    evidence: tuple[str, ...] = ()
    """What the verdict was concluded from, a sentence each."""
    findings: tuple[CaptureFinding, ...] = ()
    """In the order in which the model does it."""
    notes: tuple[str, ...] = ()
    """What a capture holds and is not promised, a sentence each with the model's line."""
    judged_under: Mapping[str, str] = field(factory=dict[str, str])
    """{option: value} in whose light it was judged."""
    streams: int | None = None
    """Streams that carried work of the simulated capture; null where it did not run to its end."""
    tasks: int | None = None
    """Tasks of the simulated capture: operators that compute, not an NPU's kernels."""
    budget: CaptureBudgetFacts | None = None
    """What the captures of all sizes take, foretold from the FX graphs; null: `no_budget` says why."""
    no_budget: str | None = None
