"""Will a model be captured? What a capture forbids and the model does: rule, code, line, fix; and how sure that is.

The packages `capture` and `report` read and write these; nothing here knows a rule. Standing:

- `proven`: the model ran under the simulated runtime's capture, which refuses the call as the public rule says; of a
  graph break: torch.compile itself made it;
- `derived`: concluded from the FX graph and the configuration;
- `unknown`: no public rule decides it, or nobody could look; `what` then says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from attrs import field, frozen

from npucompose.results.capture_budget import CaptureBudgetFacts
from npucompose.results.sinking import Certainty

CaptureVerdict = Literal["captures", "does not capture", "unknown"]

CAPTURE_VERDICTS: tuple[CaptureVerdict, ...] = get_args(CaptureVerdict)


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


@frozen(kw_only=True)
class CaptureExplanation:
    """What `npucompose explain --capture` found."""

    asked: Mapping[str, str]
    """{group: choice} of what was explained."""
    capture: CaptureLegality
    printed: tuple[str, ...] = ()
    """Lines that the model printed meanwhile."""
    trace_s: float
    """Seconds of torch.compile's trace."""
    judge_s: float
    """Seconds of the run under the simulated capture and of the judgement."""
