"""`expect:` against what came out, each miss with its evidence; and which expectations a run could not judge at all.

An expectation that this experiment cannot judge (a speed-up where nothing is measured, a GE graph in a mode without
GE) is a ConfigError before anything runs: a run that goes wrong only because of its own question has wasted its time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from npucompose.compose.check import Checked
from npucompose.errors import listed, raise_for
from npucompose.npu.static_graph.records import SinkingFacts
from npucompose.report.words import as_count, part_words
from npucompose.results.effective import COMMAND_LINE, DEFAULT
from npucompose.results.record import Expectation, Recompile, Report
from npucompose.schema.experiment import Expect, Experiment
from npucompose.schema.sizes import as_bytes, as_number
from npucompose.table.modes import MODES, modes_that

EVIDENCE_KEPT = 5
"""Sentences of evidence for one expectation; the report holds the rest in its own fields."""

JUDGED_BY: Mapping[str, str] = {
    "compiled": "compile",
    "fx_graph": "compile",
    "ge_graph": "compile",
    "ge_build": "compile",
    "path": "compile",
    "recompiles": "replay",
    "captures": "capture",
    "segments": "compile",
    "streams": "compile",
    "events": "compile",
    "bitwise": "replay",
    "speedup": "benchmark",
    "padding_ignored": "padding",
    "rules": "compile",
    "permutes": "compile",
    "capture_legal": "legality",
    "capture_streams_max": "legality",
    "capture_bytes_max": "legality",
}
"""{expectation: the stage whose facts it is judged by}."""
NO_VERDICT = "no verdict: nothing was compiled"
OF_GE = ("ge_graph", "ge_build", "path")
OF_EAGER = ("recompiles", "bitwise", "padding_ignored")
"""What can be asked of a run that compiles nothing."""
IMPLIED = "expect.compiled"
BY_IMPLICATION = "default of a file that expects something"
"""Who says `expect.compiled=true` where nothing else does."""


def with_implied(checked: Checked, stages: Sequence[str]) -> Checked:
    """`expect.compiled=true` beside what a file expects, where a run of these stages can judge it: else a preset would
    hold because eager equals itself."""
    experiment, said_by = checked.experiment, checked.provenance
    files = [by for path, by in said_by.items() if path.startswith("expect.") and by not in (COMMAND_LINE, DEFAULT)]
    judgeable = not _why_not("compiled", experiment.mode.name, experiment.pipeline.name, stages)
    if not files or not judgeable or said_by[IMPLIED] != DEFAULT:
        return checked
    expect = attrs.evolve(experiment.expect, compiled=True)
    return attrs.evolve(
        checked,
        experiment=attrs.evolve(experiment, expect=expect),
        provenance={**said_by, IMPLIED: BY_IMPLICATION},
    )


def check(experiment: Experiment, stages: Sequence[str]) -> None:
    """Raise ConfigError with every expectation that a run of these stages could not judge."""
    raise_for(
        [
            f"expect.{name} cannot be judged: {why}."
            for name in _asked(experiment.expect)
            if (why := _why_not(name, experiment.mode.name, experiment.pipeline.name, stages))
        ]
    )


def _why_not(name: str, mode: str, pipeline: str, stages: Sequence[str]) -> str | None:
    stage = JUDGED_BY[name]
    if stage not in stages:
        return f"it needs the stage {stage}, and pipeline={pipeline} runs {listed(stages)}"
    if not MODES.get(mode).compiles and name not in OF_EAGER:
        return f"mode={mode} compiles nothing and is the baseline itself"
    if not MODES.get(mode).ge and name in OF_GE:
        return f"GE builds a graph in mode={listed(modes_that('ge'))} only, not in mode={mode}"
    return None


def judged(expect: Expect, report: Report) -> tuple[Expectation, ...]:
    """Every expectation that was given, beside what the report says; what was not reached does not hold."""
    return tuple(_judged(name, wanted, _FINDERS[name](report)) for name, wanted in _asked(expect).items())


def missed(expectations: Sequence[Expectation]) -> str | None:
    """What did not hold, in one paragraph; None where all did."""
    sentences = [
        f"expect.{e.name} wanted {e.wanted}, got {e.got}" + (f" ({'; '.join(e.evidence)})" if e.evidence else "")
        for e in expectations
        if not e.held
    ]
    return "; ".join(sentences) + "." if sentences else None


def _asked(expect: Expect) -> dict[str, Any]:
    return {name: wanted for name, wanted in attrs.asdict(expect).items() if wanted is not None}


@frozen
class Finding:
    """What came out, None where nothing did, and where that comes from."""

    got: Any
    evidence: tuple[str, ...] = ()


def _judged(name: str, wanted: Any, found: Finding) -> Expectation:
    got = found.got
    held = got is not None and _HOLDS.get(name, operator.eq)(got, wanted)
    more = len(found.evidence) - EVIDENCE_KEPT
    evidence = found.evidence[:EVIDENCE_KEPT] + ((f"and {more} more",) if more > 0 else ())
    return Expectation(name=name, wanted=wanted, got=got, held=held, evidence=evidence)


_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "recompiles": operator.le,
    "speedup": operator.ge,
    "capture_streams_max": operator.le,
    "capture_bytes_max": lambda got, wanted: got <= (as_number(wanted) or 0),
}
"""Where it is not equality."""


# What came out, one function for each expectation.


def _compiled(report: Report) -> Finding:
    if report.compiled is None:
        return Finding(None, (NO_VERDICT,))
    return Finding(report.compiled, tuple(one.why for one in report.effective if one.option == "mode.name"))


def _fx_graph(report: Report) -> Finding:
    if not report.graphs:
        return Finding(None, ("no graph was compiled",))
    symbols = [f"{g.id} has the symbols {listed(g.symbols)}" for g in report.graphs if g.fx == "dynamic"]
    if not symbols:
        return Finding("static", (f"no symbol in {listed(g.id for g in report.graphs)}",))
    return Finding("dynamic", (*symbols, *_blamed(report.sinking), *map(_told, report.recompiles)))


def _verdict(name: str) -> Callable[[Report], Finding]:
    def find(report: Report) -> Finding:
        facts = report.sinking
        if facts is None:
            return Finding(None, (NO_VERDICT,))
        evidence = facts.evidence.get(name, ())
        sure = facts.certainty.get(name, "unknown")
        return Finding(
            getattr(facts, name), (f"{sure}: {listed(evidence)}" if evidence else sure, *_blamed(facts), *_steps(facts))
        )

    return find


def _path(report: Report) -> Finding:
    facts = report.sinking
    if facts is None:
        return Finding(None, (NO_VERDICT,))
    if facts.path is None:
        return Finding(None, (facts.almost or "no operator's tiling reads values, or that is unknown",))
    verdicts = [f"{name}: {getattr(facts, name)}" for name in ("fx_graph", "ge_graph", "ge_build")]
    return Finding(facts.path, (", ".join(verdicts), *_blamed(facts), *_steps(facts)))


def _blamed(facts: SinkingFacts | None) -> tuple[str, ...]:
    """The first node to blame, with its line."""
    if facts is None or not facts.blame:
        return ()
    first = facts.blame[0]
    return (f"{first.node} ({first.operator}): {first.reason}" + (f" at {first.source}" if first.source else ""),)


def _steps(facts: SinkingFacts) -> tuple[str, ...]:
    """The steps of the diagnosis that found a problem, with what mends it."""
    problems = [step for step in facts.steps if step.status == "problem"]
    return tuple(f"{s.id} {s.title}: {'; '.join(s.evidence)}" + (f"; fix: {s.fix}" if s.fix else "") for s in problems)


def _recompiles(report: Report) -> Finding:
    if report.stages.replay is None:
        return Finding(None, ("the stage replay was not reached",))
    declared = report.experiment.get("model", {}).get("sequence")
    if declared and report.stages.sequence is None:  # the comparison before the calls failed
        return Finding(None, ("the stage sequence was not reached",))
    return Finding(len(report.recompiles), tuple(map(_told, report.recompiles)))


def _told(again: Recompile) -> str:
    where = f" in {again.call}" if again.call else ""
    avoid = f"; avoid it: {again.avoid}" if again.avoid else ""
    return f"{again.compile_id}{where}: {again.reason}{avoid}"


def _captures(report: Report) -> Finding:
    if report.stages.sequence is not None:
        made = report.stages.sequence.captures
        return Finding(made, (f"over all calls of model.sequence; {report.stages.sequence.graphs} graphs",))
    if "capture" not in {record.stage for record in report.records}:
        return Finding(None, ("the stage capture was not reached",))
    capture = report.stages.capture
    if capture is None:
        return Finding(0, ("this mode records nothing on this target",))
    return Finding(capture.captures, (f"{as_count(len(report.graphs), 'graph')}, kernel calls: {capture.kernels}",))


def _segments(report: Report) -> Finding:
    """Of the graph that was cut into the most."""
    found = {graph.id: graph.partition for graph in report.graphs if graph.partition is not None}
    if not found:
        return Finding(None, ("no graph was recorded",))
    words = tuple(f"{name}: {partition.words}" for name, partition in found.items() if partition.outside)
    return Finding(max(partition.segments for partition in found.values()), words)


def _plan(name: str, without: int) -> Callable[[Report], Finding]:
    """Streams or events of the plan; `without` is their number where no plan was made."""

    def find(report: Report) -> Finding:
        if not report.graphs:
            return Finding(None, ("no graph was compiled",))
        plan = report.streams
        if plan is None:
            planned = any(p.name == "stream_plan" for p in report.passes)
            why = "the pass stream_plan found nothing to plan" if planned else "passes holds no stream_plan"
            return Finding(without, (why,))
        nodes = list(plan.nodes.values())
        return Finding(getattr(plan, name), (listed(f"{s}: {nodes.count(s)} nodes" for s in dict.fromkeys(nodes)),))

    return find


def _bitwise(report: Report) -> Finding:
    found = report.numerics
    if found is None:
        return Finding(None, ("the stage replay was not reached",))
    if found.bitwise:
        return Finding(True, (f"{found.compared} values compared",))
    inexact = [f"max. absolute error {found.max_abs_err}"] if found.max_abs_err is not None else []
    mode = MODES.get(report.experiment["mode"]["name"])
    why = f"mode={mode.name} fuses" if mode.fuses else ""
    inexact += [words for words in (part_words(found),) if words]
    return Finding(False, (*found.problems, *inexact, *((why,) if why and not found.problems else ())))


def _padding_ignored(report: Report) -> Finding:
    found = report.stages.padding
    if found is None:
        return Finding(None, ("the stage padding was not reached",))
    return Finding(found.passed, (found.words,))


def _speedup(report: Report) -> Finding:
    measured = report.stages.benchmark
    if measured is None or "eager" not in measured.speedup:
        return Finding(None, ("the stage benchmark was not reached",))
    eager = measured.baselines["eager"]
    medians = f"p50 eager {eager.p50_us:.1f} us, {measured.candidate} {measured.p50_us:.1f} us"
    return Finding(measured.speedup["eager"], (f"{medians}, {as_count(len(measured.samples_us), 'sample')}",))


def _rules(report: Report) -> Finding:
    """How often each rule was applied, over all graphs."""
    found: dict[str, int] = {}
    for rule in (rule for one in report.passes for rule in one.rules):
        found[rule.rule] = found.get(rule.rule, 0) + rule.matches
    return Finding(found, () if found else ("passes holds no adapt, or none of its rules was asked",))


def _permutes(report: Report) -> Finding:
    """What the last clean-up left in each graph, together."""
    last = {one.graph: one.moves.permutes_after for one in report.passes if one.moves is not None}
    return Finding(sum(last.values())) if last else Finding(None, ("passes holds no cancel_moves",))


def _capture_legal(report: Report) -> Finding:
    """None where the verdict is `unknown`; a finding between captures is legal."""
    facts = report.capture
    if facts is None:
        return Finding(None, ("the stage legality was not reached",))
    got = None if facts.verdict == "unknown" else facts.verdict == "captures"
    found = (one for one in facts.findings if not one.outside)
    return Finding(got, (*facts.evidence[:1], *(one.words for one in found)))


def _capture_streams(report: Report) -> Finding:
    """The upper end, so that what is unknown counts as much as it can."""
    budget = None if report.capture is None else report.capture.budget
    if budget is None:
        return Finding(None, _no_budget(report))
    return Finding(
        budget.streams.high, (f"{budget.streams} for {as_count(len(budget.sizes), 'size')}", *budget.unknown)
    )


def _capture_bytes(report: Report) -> Finding:
    """What this target's own recordings hold, which is known; else the upper end of an NPU's pool."""
    budget = None if report.capture is None else report.capture.budget
    if budget is None:
        return Finding(None, _no_budget(report))
    if budget.recorded_bytes is not None:
        return Finding(budget.recorded_bytes, (f"{as_bytes(budget.recorded_bytes)} in recordings of this target",))
    if budget.nbytes is None:
        return Finding(None, (f"no call of the model has the sizes of {budget.sizes_of}",))
    return Finding(budget.nbytes.high, (f"{budget.nbytes} bytes of an NPU's pool", *budget.unknown))


def _no_budget(report: Report) -> tuple[str, ...]:
    facts = report.capture
    if facts is None:
        return ("the stage legality was not reached",)
    return (f"not foretold: {facts.no_budget}",)


_FINDERS: Mapping[str, Callable[[Report], Finding]] = {
    "compiled": _compiled,
    "fx_graph": _fx_graph,
    "ge_graph": _verdict("ge_graph"),
    "ge_build": _verdict("ge_build"),
    "path": _path,
    "recompiles": _recompiles,
    "captures": _captures,
    "segments": _segments,
    "streams": _plan("streams", 1),
    "events": _plan("events", 0),
    "bitwise": _bitwise,
    "speedup": _speedup,
    "rules": _rules,
    "permutes": _permutes,
    "padding_ignored": _padding_ignored,
    "capture_legal": _capture_legal,
    "capture_streams_max": _capture_streams,
    "capture_bytes_max": _capture_bytes,
}
