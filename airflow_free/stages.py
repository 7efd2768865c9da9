"""The stages: compile, capture, replay, benchmark, sequence. Each asks the session and writes down facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve

from airflow_free.ablation import Ablation
from airflow_free.graph import StageGraph
from airflow_free.modes import Modes
from airflow_free.stage import Facts, Stage
from npucompose.schema.record import (
    BenchmarkFacts,
    CallFacts,
    Candidate,
    CaptureFacts,
    CompileTimes,
    GraphFacts,
    Memory,
    PassFacts,
    ReplayFacts,
    SequenceFacts,
    StreamFacts,
    facts_of,
)
from npucompose.schema.sequence import Call, told

if TYPE_CHECKING:
    from npucompose.compose.comparison import Compared
    from npucompose.compose.session import Session
    from npucompose.measure.timing import Samples
    from npucompose.schema.record import NpuFacts, Numerics
    from npucompose.targets.compilation import Compilation


UNORDERED_SHOWN = 3
"""Sentences about kernels without order that stand among the problems; the report's `npu` field has all."""


class Compile(Stage["Session"]):
    """Dynamo, AOTAutograd, passes and backend on the example inputs; a graph before and after the passes as text."""

    name: ClassVar[str] = "compile"
    reads: ClassVar[tuple[str, ...]] = (
        "mode", "shapes", "tiling", "passes", "streams", "adapt", "check", "compiler", "inductor", "target", "model",
        "compile", "seed", "sinking",
    )  # fmt: skip

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        graphs = live.compilations
        first = live.first_call
        return {
            "times": facts_of(
                CompileTimes(
                    dynamo_s=first.dynamo_s,
                    aot_s=first.aot_s,
                    passes_s=first.passes_s,
                    backend_s=first.backend_s,
                    total_s=first.total_s,
                )
            ),
            "streams": _stream_facts(graphs),
            "timelines": _timelines(graphs),
            **_graphs_account(live),
            "npu": _npu_facts(live),
            "sinking": _sinking_facts(live),
        }


def _graphs_account(live: Session) -> dict[str, Any]:
    """Every graph so far, what the passes did to it, and its texts."""
    graphs = live.compilations
    return {
        "graphs": [facts_of(_graph_facts(c)) for c in graphs],
        "passes": [facts_of(p) for c in graphs for p in _pass_facts(c)],
        "texts": {
            **{f"{c.id}.{when}.txt": text for c in graphs for when, text in _texts(c).items()},
            **live.checked.target.device_texts(live.materialised.backend),
        },
    }


def _sinking_facts(live: Session) -> dict[str, Any] | None:
    """The diagnosis of the graphs so far; a later stage's, which may know more of them, replaces an earlier one's."""
    from npucompose.compose.sinking import sinking_of

    found = sinking_of(live)
    return None if found is None else facts_of(found)


def _npu_facts(live: Session) -> dict[str, Any] | None:
    """What the vendor's side made and counted so far; a later stage's account replaces an earlier one's."""
    found = live.checked.target.device_facts(live.materialised.backend)
    return None if found is None else facts_of(found)


def _graph_facts(c: Compilation) -> GraphFacts:
    return GraphFacts(
        id=c.id,
        fingerprint=c.fingerprint,
        nodes_before=c.nodes_before,
        nodes_after=c.nodes_after,
        fx="dynamic" if c.symbols else "static",
        symbols=c.symbols,
    )


def _pass_facts(c: Compilation) -> list[PassFacts]:
    return [
        PassFacts(
            name=r.name,
            stage=r.stage,
            matches=r.matches,
            nodes_before=r.nodes_before,
            nodes_after=r.nodes_after,
            seconds=r.seconds,
            exact=r.exact,
            rules=r.rules,
            moves=r.moves,
            folds=r.folds,
            max_abs_err=r.max_abs_err,
            graph=c.id,
        )
        for r in c.passes
    ]


def _stream_facts(graphs: tuple[Compilation, ...]) -> dict[str, Any] | None:
    """The plan over all graphs, their times added; node names carry their graph's id where there are several."""
    planned = [c for c in graphs if c.plan.nodes]
    if not planned:
        return None
    several = len(planned) > 1
    nodes = {(f"{c.id}.{n}" if several else n): s for c in planned for n, s in c.plan.nodes.items()}
    decisions = [(f"{c.id}: " if several else "", c.decision) for c in planned if c.decision is not None]
    told = [decision.prediction for _, decision in decisions if decision.prediction is not None]
    facts = StreamFacts(
        streams=len(set(nodes.values())),
        events=sum(len(c.plan.events) for c in planned),
        nodes=nodes,
        validated=all(c.decision is not None and c.decision.validated for c in planned),
        applied=all(decision.applied for _, decision in decisions),
        why="; ".join(f"{graph}{decision.why}" for graph, decision in decisions),
    )
    if not told or told[0].cost == "none":
        return facts_of(facts)
    return facts_of(
        evolve(
            facts,
            device=told[0].device,
            cost=told[0].cost,
            predicted_us=sum(one.plan_us for one in told),
            serial_us=sum(one.serial_us for one in told),
            critical_us=sum(one.critical_us for one in told),
            busy=told[0].busy if len(told) == 1 else {},
            peak_bytes=max(one.peak_bytes for one in told),
            serial_peak_bytes=max(one.serial_peak_bytes for one in told),
        )
    )


def _timelines(graphs: tuple[Compilation, ...]) -> dict[str, Any]:
    """{graph: its predicted timeline}, for trace.json."""
    drawn = {c.id: c.decision.timeline for c in graphs if c.decision is not None}
    return {name: facts_of(line) for name, line in drawn.items() if line is not None}


def _texts(c: Compilation) -> dict[str, str]:
    return {"before": c.text_before, "after": c.text_after}


class Capture(Stage["Session"]):
    """What was recorded: kernels, memory, and whether the recording can be called without torch.compile's guards."""

    name: ClassVar[str] = "capture"
    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        live.compiled  # noqa: B018  the first call records
        recordings = live.checked.target.recordings(live.materialised.backend)
        handle = live.detached
        facts: dict[str, Any] = {
            "recordings": recordings,
            "capture": None,
            "memory": facts_of(Memory()),
        }
        if recordings:
            facts["capture"] = facts_of(
                CaptureFacts(
                    seconds=sum(r["seconds"] for r in recordings),
                    captures=len(recordings),
                    kernels=sum(r["kernels"] for r in recordings),
                    executor=_named(recordings, "executor"),
                    why_executor=_named(recordings, "executor_reason"),
                    detached=handle is not None,
                    why_attached=live.why_attached or None,
                )
            )
            facts["memory"] = facts_of(
                Memory(
                    pool_bytes=_summed(recordings, "pool_bytes"),
                    shared_pool_bytes=_shared(recordings),
                    unplanned_bytes=_summed(recordings, "unplanned_bytes"),
                    live_bytes=_summed(recordings, "live_bytes"),
                )
            )
        return facts


def _summed(recordings: list[Mapping[str, Any]], name: str) -> int | None:
    """None where a recording does not know."""
    values = [recording.get(name) for recording in recordings]
    return None if None in values else sum(value for value in values if value is not None)


def _shared(recordings: list[Mapping[str, Any]]) -> int | None:
    """The slabs of all recordings, each once; None where a recording does not know them."""
    if any("slabs" not in recording for recording in recordings):
        return None
    return sum({number: nbytes for recording in recordings for number, nbytes in recording["slabs"]}.values())


def _named(recordings: list[Mapping[str, Any]], name: str) -> str | None:
    """The different words of all recordings, in order; None where none says anything."""
    return ", ".join(dict.fromkeys(str(r[name]) for r in recordings if r.get(name))) or None


class Replay(Stage["Session"]):
    """Eager and compiled side by side on fresh inputs of every step, from one state; then the detached handle."""

    name: ClassVar[str] = "replay"
    needs: ClassVar[tuple[str, ...]] = ("capture",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark.threads",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.compose.comparison import every_step

        steps = every_step(live, progress)
        replay = ReplayFacts(first_us=steps.first_us, replays=len(steps.results), detached_ended=steps.ended)
        return {
            "replay": facts_of(replay),
            "texts": dict(live.checked.target.device_texts(live.materialised.backend)),
            **_comparison_account(live, steps.results),
        }


def _comparison_account(live: Session, results: Mapping[str, Compared]) -> dict[str, Any]:
    """One verdict of all calls, what was compiled again for them, and what the vendor's side came to meanwhile."""
    from npucompose.measure.numerics import combined

    target, mode = live.checked.target, live.experiment.mode.name
    npu = target.device_facts(live.materialised.backend)
    numerics = combined({name: r.numerics for name, r in results.items()})
    return {
        "numerics": facts_of(_with_order(evolve(numerics, note=target.numerics_note(mode)), npu)),
        "recompiles": [facts_of(again) for r in results.values() for again in r.recompiles],
        "npu": None if npu is None else facts_of(npu),
        "sinking": _sinking_facts(live),
    }


def _with_order(numerics: Numerics, npu: NpuFacts | None) -> Numerics:
    """Kernels that no event orders ran in one row here and agree with eager; on a device they would race."""
    if npu is None or not npu.unordered:
        return numerics
    return evolve(numerics, passed=False, problems=(*numerics.problems, *npu.unordered[:UNORDERED_SHOWN]))


class DeclaredCalls(Stage["Session"]):
    """The calls of `model.sequence`, the example inputs first, each compared with eager; what each compiled again.

    Runs after the benchmark, whose compiled model must not know other shapes yet.
    """

    name: ClassVar[str] = "sequence"
    needs: ClassVar[tuple[str, ...]] = ("replay",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.compose.comparison import compared, named

        target = live.checked.target
        live, before = _as_after_the_first_call(live)
        results: dict[str, Compared] = {}
        for at, call in enumerate(live.calls):
            name = named(at, call)
            results[name] = compared(live, live.compiled, at, call, name=name)
            progress((at + 1) / len(live.calls))
        return {
            "sequence": facts_of(
                SequenceFacts(
                    calls=tuple(_call_facts(c, r) for c, r in zip(live.calls, results.values(), strict=True)),
                    graphs=len(live.compilations),
                    captures=len(target.recordings(live.materialised.backend)) - before,
                )
            ),
            **_graphs_account(live),
            **_comparison_account(live, results),
        }


def _as_after_the_first_call(live: Session) -> tuple[Session, int]:
    """A session in which only the example inputs were compiled, and how many recordings are not its own.

    A model may vary its numbers from step to step (`model.grow`), so that the comparison compiled more than that: then
    a new session starts over, and the calls are counted as in a process of their own.
    """
    if live.compiled_once:
        return live, 0
    again = type(live)(live.checked, live.folders)
    return again, len(live.checked.target.recordings(again.materialised.backend))


def _call_facts(call: Call, result: Compared) -> CallFacts:
    return CallFacts(
        call=told(call),
        recompiles=len(result.recompiles),
        passed=result.numerics.passed,
        max_abs_err=result.numerics.max_abs_err,
    )


class Benchmark(Stage["Session"]):
    """Eager, torch.compile and the detached handle, interleaved in one process, raw samples kept."""

    name: ClassVar[str] = "benchmark"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark",)
    measures: ClassVar[bool] = True

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        import torch

        from npucompose.measure.memory import peak_rss_bytes
        from npucompose.measure.timing import interleaved

        settings = live.experiment.benchmark
        live.rewind()
        with torch.no_grad():
            samples = interleaved(
                _candidates(live),
                warmup=settings.warmup,
                min_calls=settings.min_calls,
                min_seconds=settings.min_seconds,
                max_calls=settings.max_calls,
                synchronize=live.checked.target.synchronize,
                progress=progress,
            )
        times = live.checked.target.stream_times(live.materialised.backend)
        return {
            "stream_times": {name: facts_of(one) for name, one in times.items()},
            "timelines": {name: facts_of(one.timeline) for name, one in times.items()},
            "benchmark": facts_of(_benchmark_facts(samples)),
            "memory": facts_of(Memory(peak_rss_bytes=peak_rss_bytes())),
        }


def _candidates(live: Session) -> dict[str, Callable[[], Any]]:
    functions: dict[str, Callable[..., Any]] = {"eager": live.reference}
    if live.experiment.mode.name != "eager":
        functions["compiled"] = live.compiled
    if live.detached is not None:
        functions["replay"] = live.detached
    return {name: _bound(function, tuple(live.inputs(0).values())) for name, function in functions.items()}


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _benchmark_facts(samples: Mapping[str, Samples]) -> BenchmarkFacts:
    from npucompose.measure.timing import paired_ratio

    order: tuple[Candidate, ...] = ("replay", "compiled", "eager")
    main: Candidate = next(name for name in order if name in samples)
    timing = samples[main].timing()
    compiled = samples.get("compiled")
    return BenchmarkFacts(
        candidate=main,
        samples_us=timing.samples_us,
        p50_us=timing.p50_us,
        p90_us=timing.p90_us,
        p99_us=timing.p99_us,
        mean_us=timing.mean_us,
        baselines={name: s.timing() for name, s in samples.items() if name != main},
        speedup={"eager": paired_ratio(samples["eager"], samples[main])} if main != "eager" else {},
        speedup_compiled={"eager": paired_ratio(samples["eager"], compiled)} if compiled is not None else {},
    )


STAGES = StageGraph.of([Compile(), Capture(), Replay(), Benchmark(), Ablation(), Modes(), DeclaredCalls()])
