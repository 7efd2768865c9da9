"""Facts of finished stages become one Report. Knows no torch and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from airflow_free.keys import Ingredients
from airflow_free.outcome import Outcome
from airflow_free.stage import Finished, Stage
from airflow_free.store import Store
from npucompose.compose.check import Checked
from npucompose.errors import visible
from npucompose.experiment.expectations import judged, missed
from npucompose.measure.numerics import combined
from npucompose.npu.capture.records import CaptureLegality
from npucompose.npu.static_graph.records import SinkingFacts
from npucompose.npu.torchair.records import NpuFacts
from npucompose.report.plan_words import trial_words
from npucompose.results.effective import Effective
from npucompose.results.graphs import PassFacts, counted, pins_of_nothing, refused_on_npu
from npucompose.results.measured import AblationFacts, GenerateFacts, MemoryFacts, ModeFacts, Numerics, PaddingFacts
from npucompose.results.record import (
    BenchmarkFacts,
    CaptureFacts,
    CompileTimes,
    Environment,
    GraphFacts,
    Recompile,
    ReplayFacts,
    Report,
    SequenceFacts,
    StageRun,
    Stages,
    Status,
)
from npucompose.results.streams import Fallback, StreamFacts, TrialVerdict
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.table.modes import EAGER
from npucompose.table.structure import of_facts

T = TypeVar("T")

MODE = "mode.name"

LONG_US = 1000.0
"""From here on a predicted time is held against the measured one."""

PROBLEMS_SHOWN = 1
"""Of a comparison that did not pass, in its error."""

ACCOUNTS = ("compile", "replay", "sequence", "generate")
"""Stages that tell of graphs, recompilations and comparisons, in running order."""


def assembled(
    checked: Checked,
    ingredients: Ingredients,
    order: Sequence[Stage[Any]],
    finished: Sequence[Finished],
    store: Store,
    outcome: Outcome | None,
) -> Report:
    """The report of a run; `outcome` is None when no worker was needed."""
    facts = {f.stage: f.facts for f in finished}
    graphs = _all_of(GraphFacts, _latest(facts, "graphs"), "graphs")
    refused = [one for graph in graphs for one in graph.npu_refuses]
    npu = _latest_of(NpuFacts, facts, "npu")
    report = Report(
        key=ingredients.key,
        status="ok",
        last_lines=outcome.last_lines if outcome is not None else (),
        log_cut_bytes=outcome.log_cut_bytes if outcome is not None else 0,
        reused=len(finished) == len(order) and all(f.reused for f in finished),
        experiment=ingredients.values,
        provenance=checked.provenance,
        effective=(
            *checked.effective,
            *_ran_eagerly(checked, npu),
            *refused_on_npu(checked.target.name, refused),
            *_idle_pins(checked, graphs),
        ),
        compiled=npu.compiled if npu is not None else True if graphs else None,
        environment=_environment(finished, store),
        graphs=graphs,
        passes=_all_of(PassFacts, _latest(facts, "passes"), "passes"),
        rejected=tuple(visible(str(one)) for one in outcome.facts.get("rejected", ())) if outcome is not None else (),
        streams=_streams(facts),
        sinking=_sinking(facts, outcome),
        capture=_of(CaptureLegality, facts, "legality", "legality"),
        recompiles=_all_of(Recompile, _gathered(facts, "recompiles"), "recompiles"),
        stages=_stages(facts),
        numerics=_numerics(facts),
        npu=npu,
        memory=_memory(facts),
        records=tuple(StageRun(stage=f.stage, key=f.key, reused=f.reused, seconds=f.seconds) for f in finished),
    )
    report = attrs.evolve(report, expectations=judged(checked.experiment.expect, report))
    return attrs.evolve(report, status=_status(outcome, report), error=_error(outcome, report))


def _ran_eagerly(checked: Checked, npu: NpuFacts | None) -> Iterator[Effective]:
    """The mode, where only the run showed that calls ran eagerly."""
    if npu is None or npu.compiled is not False or any(one.option == MODE for one in checked.effective):
        return
    spec, why = checked.experiment.mode.spec, []
    if npu.uncompiled:
        why.append(f"TorchAir ran {counted(npu.uncompiled, 'graph')} eagerly, and run.log says why")
    if npu.eager_calls and spec.capture_limit:
        limit = f"compiler.{spec.capture_limit}={checked.experiment.compiler[spec.capture_limit]}"
        why.append(
            f"{counted(npu.eager_calls, 'call')} ran eagerly: TorchAir captures a graph {limit} times at most, drops "
            "its captures where one more is asked for, and runs the graph eagerly from then on"
        )
    if npu.calls_beyond:
        why.append(
            f"{counted(npu.calls_beyond, 'call')} ran eagerly: torch.compile had reached torch._dynamo.config."
            "recompile_limit, and with compile.fullgraph=false it then runs the model itself"
        )
    yield Effective(option=MODE, requested=spec.name, effective=EAGER, why="; ".join(why))


def _idle_pins(checked: Checked, graphs: Sequence[GraphFacts]) -> tuple[Effective, ...]:
    """Pinned kernels that no graph has a part for, where graphs were compiled."""
    pinned: Mapping[str, str] = getattr(checked.target, "kernels", {})
    found = [winner for graph in graphs for winner in graph.winners]
    return pins_of_nothing(pinned, found) if graphs else ()


def _streams(facts: Mapping[str, Mapping[str, Any]]) -> StreamFacts | None:
    """The plan as it was made, whether its recordings run it, on how many threads, and how long it took where that was
    measured. The recordings are those of the last process that says something of them: each makes its own trial."""
    plan: StreamFacts | None = _of(StreamFacts, facts, "compile", "streams")
    if plan is None:
        return None
    told = (facts.get(stage, {}).get("recordings") for stage in ("benchmark", "capture", "compile"))
    recorded = [r for r in next(filter(None, told), ()) if r.get("streams", 1) > 1 or r.get("trial") is not None]
    plan = _tried(plan, recorded)
    if recorded and plan.applied:
        why = "; ".join(dict.fromkeys(r["why_threads"] for r in recorded if r["why_threads"]))
        threads = max(r["threads"] for r in recorded)
        plan = attrs.evolve(plan, threads=threads, why_threads=why, fallback=_fallback(recorded), **_pools(recorded))
    times = list(facts.get("benchmark", {}).get("stream_times", {}).values())
    if not times:
        return plan
    took = sum(one["plan_us"] for one in times)
    comparable = plan.predicted_us is not None and took >= LONG_US and len(times) == len(facts["compile"]["graphs"])
    return attrs.evolve(
        plan,
        measured_us=took,
        measured_serial_us=sum(one["serial_us"] for one in times),
        prediction_error=plan.predicted_us / took - 1 if comparable and plan.predicted_us is not None else None,
    )


def _fallback(recorded: Sequence[Mapping[str, Any]]) -> Fallback | None:
    found = [
        of_facts(Fallback, r["fallback"], where="benchmark.fallback") for r in recorded if r.get("fallback") is not None
    ]
    return Fallback.together(found) if any(one.falls for one in found) else None


def _pools(recorded: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What the recordings take, and would take on one stream, added up; {} where one does not know."""
    names = ("pool_bytes", "one_stream_pool_bytes")
    known = all(r.get(name) is not None for r in recorded for name in names)
    return {name: sum(r[name] for r in recorded) for name in names} if known else {}


def _tried(plan: StreamFacts, recorded: Sequence[Mapping[str, Any]]) -> StreamFacts:
    """With what the trials say; a plan that no recording keeps leaves one stream."""
    verdicts = tuple(
        of_facts(TrialVerdict, r["trial"], where="capture.trial") for r in recorded if r.get("trial") is not None
    )
    if not verdicts:
        return plan
    plan = attrs.evolve(plan, trials=verdicts, applied=any(verdict.applied for verdict in verdicts))
    if not plan.applied and len(verdicts) == len(recorded):
        plan = attrs.evolve(plan, streams=1, events=0, nodes=dict.fromkeys(plan.nodes, DEFAULT_STREAM))
    return attrs.evolve(plan, why=trial_words(plan))


def _sinking(facts: Mapping[str, Mapping[str, Any]], outcome: Outcome | None) -> SinkingFacts | None:
    """The last stage's account; where one failed, what that knows of the graph that was not taken."""
    failed = None if outcome is None else outcome.facts.get("sinking")
    if failed is not None:
        return of_facts(SinkingFacts, failed, where="sinking")
    return _latest_of(SinkingFacts, facts, "sinking")


def _latest(facts: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """What the last stage that knows it says: a later account holds all of an earlier one."""
    return next((facts[s][name] for s in reversed(ACCOUNTS) if facts.get(s, {}).get(name) is not None), None)


def _latest_of(cls: type[T], facts: Mapping[str, Mapping[str, Any]], name: str) -> T | None:
    value = _latest(facts, name)
    return None if value is None else of_facts(cls, value, where=name)


def _gathered(facts: Mapping[str, Mapping[str, Any]], name: str) -> list[Any]:
    return [one for stage in ACCOUNTS for one in facts.get(stage, {}).get(name, ())]


def _all_of(cls: type[T], entries: Sequence[Any] | None, where: str) -> tuple[T, ...]:
    return tuple(of_facts(cls, entry, where=where) for entry in entries or ())


def _numerics(facts: Mapping[str, Mapping[str, Any]]) -> Numerics | None:
    """One verdict of both comparisons: the steps of the model, and the declared calls."""
    found = {s: _of(Numerics, facts, s, "numerics") for s in ACCOUNTS if facts.get(s, {}).get("numerics") is not None}
    if len(found) < 2:
        return next(iter(found.values()), None)
    last = list(found.values())[-1]
    return attrs.evolve(combined(found), note=last.note)


def _of(cls: type[Any], facts: Mapping[str, Mapping[str, Any]], stage: str, name: str) -> Any:
    value = facts.get(stage, {}).get(name)
    return None if value is None else of_facts(cls, value, where=f"{stage}.{name}")


def _stages(facts: Mapping[str, Mapping[str, Any]]) -> Stages:
    return Stages(
        compile=_of(CompileTimes, facts, "compile", "times"),
        capture=_of(CaptureFacts, facts, "capture", "capture"),
        replay=_of(ReplayFacts, facts, "replay", "replay"),
        benchmark=_of(BenchmarkFacts, facts, "benchmark", "benchmark"),
        padding=_of(PaddingFacts, facts, "padding", "padding"),
        ablation=_of(AblationFacts, facts, "ablation", "ablation"),
        modes=_of(ModeFacts, facts, "modes", "modes"),
        sequence=_of(SequenceFacts, facts, "sequence", "sequence"),
        generate=_of(GenerateFacts, facts, "generate", "generate"),
        installed={name: found for name, found in facts.items() if name not in _BUILT_IN},
    )


_BUILT_IN = frozenset(field.name for field in attrs.fields(Stages))


def _memory(facts: Mapping[str, Mapping[str, Any]]) -> MemoryFacts | None:
    """The pool from the recording, the peak from the process that measured."""
    parts = [facts[s]["memory"] for s in ("capture", "benchmark") if s in facts]
    if not parts:
        return None
    return of_facts(MemoryFacts, {k: v for p in parts for k, v in p.items() if v is not None}, where="memory")


def _environment(finished: Sequence[Finished], store: Store) -> Environment | None:
    """The environment of the last record: the one that measured, where something was measured."""
    for f in reversed(finished):
        record = store.read(f.stage, f.key)
        if record is not None:
            return of_facts(Environment, record.environment, where="environment")
    return None


def _status(outcome: Outcome | None, report: Report) -> Status:
    if outcome is not None and outcome.status in ("failed", "crashed", "timeout", "memory_limit"):
        return outcome.status
    if report.numerics is not None and not report.numerics.passed:
        return "numerics_failed"
    if not all(e.held for e in report.expectations):
        return "expect_failed"
    return "uncompiled" if report.compiled is False else "ok"


def _failed(numerics: Numerics) -> str:
    """The paragraph on a comparison that did not pass: whose fault it is comes first."""
    more = len(numerics.problems) - PROBLEMS_SHOWN
    rest = f"; and {more} more, in report.json" if more > 0 else ""
    problems = "; ".join(numerics.problems[:PROBLEMS_SHOWN]) + rest
    if numerics.cause == "model":
        return f"{problems}. Nothing can be compared with it."
    if numerics.cause == "tracing":
        return (
            "tracing changed the results by more than the table of tolerances allows, before anything of npucompose "
            f"touched the graph: torch.compile(backend='aot_eager') differs from eager too; {problems}"
        )
    if numerics.cause == "passes":
        return f"the passes changed the results: {problems}"
    return f"the comparison with eager failed: {problems}"


def _error(outcome: Outcome | None, report: Report) -> str | None:
    if outcome is not None and outcome.status != "done":
        return outcome.error
    if report.numerics is not None and not report.numerics.passed:
        return _failed(report.numerics)
    return missed(report.expectations)
