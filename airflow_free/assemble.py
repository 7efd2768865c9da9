"""Facts of finished stages become one Report. Knows no torch and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_free.keys import Ingredients
from airflow_free.runner import Finished
from airflow_free.stage import Stage
from airflow_free.store import Store
from airflow_free.worker import Outcome
from npucompose.compose.check import Checked
from npucompose.schema.experiment import Expect
from npucompose.schema.record import (
    BenchmarkFacts,
    CaptureFacts,
    CompileTimes,
    Environment,
    Expectation,
    GraphFacts,
    Memory,
    NpuFacts,
    Numerics,
    PassFacts,
    Recompile,
    ReplayFacts,
    Report,
    StageRun,
    Stages,
    Status,
    StreamFacts,
    of_facts,
)
from npucompose.schema.sinking import SinkingFacts


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
    stages = _stages(facts)
    numerics = _of(Numerics, facts, "replay", "numerics")
    recompiles = tuple(
        of_facts(Recompile, r, where="recompiles") for r in facts.get("replay", {}).get("recompiles", ())
    )
    graphs = tuple(of_facts(GraphFacts, g, where="graphs") for g in facts.get("compile", {}).get("graphs", ()))
    streams = _of(StreamFacts, facts, "compile", "streams")
    expectations = _expectations(checked.experiment.expect, graphs, streams, stages, numerics, recompiles)
    return Report(
        key=ingredients.key,
        status=_status(outcome, numerics, expectations),
        error=_error(outcome, numerics, expectations),
        last_lines=outcome.last_lines if outcome is not None else (),
        reused=len(finished) == len(order) and all(f.reused for f in finished),
        experiment=ingredients.values,
        provenance=checked.provenance,
        effective=checked.effective,
        environment=_environment(finished, store),
        graphs=graphs,
        passes=tuple(of_facts(PassFacts, p, where="passes") for p in facts.get("compile", {}).get("passes", ())),
        streams=streams,
        sinking=_of(SinkingFacts, facts, "replay", "sinking") or _of(SinkingFacts, facts, "compile", "sinking"),
        recompiles=recompiles,
        stages=stages,
        numerics=numerics,
        npu=_of(NpuFacts, facts, "replay", "npu") or _of(NpuFacts, facts, "compile", "npu"),
        memory=_memory(facts),
        expectations=expectations,
        records=tuple(StageRun(stage=f.stage, key=f.key, reused=f.reused, seconds=f.seconds) for f in finished),
    )


def _of(cls: type[Any], facts: Mapping[str, Mapping[str, Any]], stage: str, name: str) -> Any:
    value = facts.get(stage, {}).get(name)
    return None if value is None else of_facts(cls, value, where=f"{stage}.{name}")


def _stages(facts: Mapping[str, Mapping[str, Any]]) -> Stages:
    return Stages(
        compile=_of(CompileTimes, facts, "compile", "times"),
        capture=_of(CaptureFacts, facts, "capture", "capture"),
        replay=_of(ReplayFacts, facts, "replay", "replay"),
        benchmark=_of(BenchmarkFacts, facts, "benchmark", "benchmark"),
    )


def _memory(facts: Mapping[str, Mapping[str, Any]]) -> Memory | None:
    """The pool from the recording, the peak from the process that measured."""
    parts = [facts[s]["memory"] for s in ("capture", "benchmark") if s in facts]
    if not parts:
        return None
    return of_facts(Memory, {k: v for p in parts for k, v in p.items() if v is not None}, where="memory")


def _environment(finished: Sequence[Finished], store: Store) -> Environment | None:
    """The environment of the last record: the one that measured, where something was measured."""
    for f in reversed(finished):
        record = store.read(f.stage, f.key)
        if record is not None:
            return of_facts(Environment, record.environment, where="environment")
    return None


def _status(outcome: Outcome | None, numerics: Numerics | None, expectations: Sequence[Expectation]) -> Status:
    if outcome is not None and outcome.status in ("failed", "crashed", "timeout"):
        return outcome.status
    if numerics is not None and not numerics.passed:
        return "numerics_failed"
    return "ok" if all(e.held for e in expectations) else "expect_failed"


def _error(outcome: Outcome | None, numerics: Numerics | None, expectations: Sequence[Expectation]) -> str | None:
    if outcome is not None and outcome.status != "done":
        return outcome.error
    if numerics is not None and not numerics.passed:
        return "the comparison with eager failed: " + "; ".join(numerics.problems)
    missed = [f"expect.{e.name} wanted {e.wanted}, got {e.got}" for e in expectations if not e.held]
    return "; ".join(missed) + "." if missed else None


def _expectations(
    expect: Expect,
    graphs: Sequence[GraphFacts],
    streams: StreamFacts | None,
    stages: Stages,
    numerics: Numerics | None,
    recompiles: Sequence[Recompile],
) -> tuple[Expectation, ...]:
    """Each expectation that was asked for, beside what came out; what was not measured does not hold."""
    fx = ("dynamic" if any(g.fx == "dynamic" for g in graphs) else "static") if graphs else None
    speedup = stages.benchmark.speedup.get("eager") if stages.benchmark is not None else None
    captures = stages.capture.captures if stages.capture is not None else None
    found = {
        "fx_graph": (fx, fx == expect.fx_graph),
        "recompiles": (len(recompiles), expect.recompiles is not None and len(recompiles) <= expect.recompiles),
        "captures": (captures, captures == expect.captures),
        "streams": (streams.streams if streams else 1, (streams.streams if streams else 1) == expect.streams),
        "events": (streams.events if streams else 0, (streams.events if streams else 0) == expect.events),
        "bitwise": (numerics.bitwise if numerics else None, (numerics.bitwise if numerics else None) == expect.bitwise),
        "speedup": (speedup, speedup is not None and expect.speedup is not None and speedup >= expect.speedup),
    }
    return tuple(
        Expectation(name=name, wanted=wanted, got=got, held=held)
        for name, (got, held) in found.items()
        if (wanted := getattr(expect, name)) is not None
    )
