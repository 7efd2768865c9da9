"""The verdict on one capture of a model's call: what was refused, what the graphs show, where torch.compile cuts.

Torch-free: it is handed what others saw. `judge` is the one way in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, field, frozen

from npucompose.npu.capture.reading import BRANCH, Break
from npucompose.npu.capture.records import CaptureBudgetFacts, CaptureFinding, CaptureLegality, CaptureVerdict
from npucompose.npu.capture.rules import CaptureMode, rules
from npucompose.npu.capture.simulated.runtime import CaptureRuntime, Refusal
from npucompose.npu.static_graph.records import Certainty


@frozen(kw_only=True)
class CaptureQuestion:
    """In whose light a capture is judged."""

    mode: str
    target: str
    torch_npu: str | None = None
    """The version whose rules hold; None: all of them."""
    capture_mode: CaptureMode = "global"
    fullgraph: bool = True


@frozen(kw_only=True)
class Seen:
    """What was seen of one call of the model."""

    runtime: CaptureRuntime
    ran: str | None = None
    """Why the call did not run to its end under the simulated capture; None: it did."""
    graphs: tuple[CaptureFinding, ...] = ()
    breaks: tuple[Break, ...] = ()
    traced: str | None = None
    """Why torch.compile was not asked, or made no graph; None: it did."""
    doubt: str | None = None
    """Why the graphs are not to be believed."""
    draws: tuple[str, ...] = ()
    """Lines that draw random numbers on the device."""
    streams_at: frozenset[str] = field(factory=frozenset[str])
    """Lines that call streams, which torch.compile traces on the device only."""
    budget: CaptureBudgetFacts | None = None
    """What the captures of all sizes take; None: nothing was foretold."""
    no_budget: str | None = None
    """Why."""


def judge(question: CaptureQuestion, seen: Seen) -> CaptureLegality:
    """The report's `capture`."""
    found = tuple(_findings(question, seen))
    counted = [one for one in found if not one.outside]
    illegal = [one for one in counted if one.standing != "unknown"]
    refused = [one for one in illegal if not rules().of(one.rule).race]
    verdict: CaptureVerdict = "does not capture" if refused else "captures with races" if illegal else "captures"
    certainty = _certainty(refused or illegal)
    if not illegal and (counted or seen.ran is not None or seen.doubt is not None):
        verdict, certainty = "unknown", "unknown"
    finished = seen.ran is None
    return CaptureLegality(
        verdict=verdict,
        certainty=certainty,
        evidence=tuple(_evidence(counted, seen)),
        findings=found,
        notes=tuple(f"{line}: {rules().notes['random_numbers'].says}" for line in seen.draws),
        judged_under=_judged_under(question),
        streams=len(seen.runtime.tasks) if finished else None,
        tasks=seen.runtime.tasks.total() if finished else None,
        budget=seen.budget,
        no_budget=seen.no_budget,
    )


def _certainty(illegal: Sequence[CaptureFinding]) -> Certainty:
    return "proven" if not illegal or any(one.standing == "proven" for one in illegal) else "derived"


def _judged_under(question: CaptureQuestion) -> dict[str, str]:
    version = {} if question.torch_npu is None else {"torch_npu": question.torch_npu}
    return {
        "target": question.target,
        **version,
        "mode": question.mode,
        "capture_error_mode": question.capture_mode,
        "compile.fullgraph": str(question.fullgraph).lower(),
    }


def _evidence(counted: Sequence[CaptureFinding], seen: Seen) -> Iterator[str]:
    if counted:
        first = counted[0]
        yield f"{first.rule}: {first.what}" + (f" at {first.source}" if first.source else "")
    elif seen.ran is None and seen.doubt is None:
        tasks, streams = seen.runtime.tasks.total(), len(seen.runtime.tasks)
        yield f"the simulated capture took {tasks} tasks on {streams} stream{'s' if streams != 1 else ''}"
    if seen.ran is not None:
        yield f"the call did not run to its end under the simulated capture: {seen.ran}"
    if seen.doubt is not None:
        yield seen.doubt
    if seen.traced is not None:
        yield f"no FX graph was read: {seen.traced}"


def _findings(question: CaptureQuestion, seen: Seen) -> Iterator[CaptureFinding]:
    """Refusals first, in the order of the run; then what only a graph shows, and cuts that nothing else explains."""
    cut = {one.source for one in seen.breaks if one.source is not None}
    outside = cut if not question.fullgraph else set[str]()
    refused = [_refused(one) for one in seen.runtime.refusals]
    known = {(one.rule, one.source) for one in refused}
    for one in refused:
        yield evolve(_with_node(one, seen.graphs), outside=one.source in outside)
    for one in seen.graphs:
        if (one.rule, one.source) not in known:
            yield evolve(one, outside=one.source in outside)
    explained = {one.source for one in refused}
    for one in seen.breaks:
        if one.source not in explained and one.source not in seen.streams_at:
            yield evolve(_broken(one), outside=not question.fullgraph)
    if seen.budget is not None:
        yield from _exhausted(seen.budget)


def _refused(refusal: Refusal) -> CaptureFinding:
    row = rules().of(refusal.rule)
    return CaptureFinding(
        rule=refusal.rule,
        code=row.code,
        also=row.also,
        what=refusal.what,
        source=refusal.source,
        fix=refusal.fix or row.fix,
        standing=row.standing if refusal.sure else "unknown",
    )


def _with_node(refused: CaptureFinding, graphs: Sequence[CaptureFinding]) -> CaptureFinding:
    """With the node that says the same of the same line."""
    same = (one for one in graphs if (one.rule, one.source) == (refused.rule, refused.source))
    node = next(same, None)
    return refused if node is None else evolve(refused, node=node.node, graph=node.graph)


def _broken(one: Break) -> CaptureFinding:
    rule = "conditional" if one.reason == BRANCH else "graph_break"
    row = rules().of(rule)
    return CaptureFinding(rule=rule, code=row.code, what=one.reason, source=one.source, fix=row.fix, standing="proven")


def _exhausted(budget: CaptureBudgetFacts) -> Iterator[CaptureFinding]:
    """More streams than there are, even where all that is unknown of the captures is at its best.

    `derived` where no driver gives so many, `unknown` where some do; what fits only at best stands in the budget.
    """
    least, given = budget.streams.low, budget.available
    if least <= given.low:
        return
    row = rules().of("streams_exhausted")
    few = f"{given.low:,}" if given.high in (None, given.low) else f"{given.low:,} to {given.high:,}"
    number = len(budget.sizes)
    yield CaptureFinding(
        rule="streams_exhausted",
        code=row.code,
        what=f"captures of {number} sizes take {least:,} streams or more; {budget.soc} has {few} for captures",
        source=None,
        fix=row.fix,
        standing="derived" if given.high is not None and least > given.high else "unknown",
    )
