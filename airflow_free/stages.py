"""The stages of an experiment: compile, capture, replay, benchmark. Each asks the session and writes down facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve

from airflow_free.graph import StageGraph
from airflow_free.stage import Facts, Stage
from npucompose.schema.record import (
    BenchmarkFacts,
    Candidate,
    CaptureFacts,
    CompileTimes,
    GraphFacts,
    Memory,
    PassFacts,
    Recompile,
    ReplayFacts,
    StreamFacts,
    facts_of,
)

if TYPE_CHECKING:
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
        "mode", "shapes", "tiling", "passes", "streams", "adapt", "check", "compiler", "target", "model", "compile", "seed",
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
            "graphs": [facts_of(_graph_facts(c)) for c in graphs],
            "passes": [facts_of(p) for c in graphs for p in _pass_facts(c)],
            "streams": _stream_facts(graphs),
            "texts": {
                **{f"{c.id}.{when}.txt": text for c in graphs for when, text in _texts(c).items()},
                **live.checked.target.device_texts(live.materialised.backend),
            },
            "npu": _npu_facts(live),
        }


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
            max_abs_err=r.max_abs_err,
            graph=c.id,
        )
        for r in c.passes
    ]


def _stream_facts(graphs: tuple[Compilation, ...]) -> dict[str, Any] | None:
    """The plan over all graphs; node names carry their graph's id where there are several."""
    planned = [c for c in graphs if c.plan.nodes]
    if not planned:
        return None
    nodes = {(f"{c.id}.{n}" if len(planned) > 1 else n): s for c in planned for n, s in c.plan.nodes.items()}
    return facts_of(
        StreamFacts(
            streams=len(set(nodes.values())),
            events=sum(len(c.plan.events) for c in planned),
            nodes=nodes,
            # The pass refuses a plan that its validator does not pass, so that a plan in a graph is a validated one.
            validated=True,
        )
    )


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
                    detached=handle is not None,
                    why_attached=live.why_attached or None,
                )
            )
            facts["memory"] = facts_of(
                Memory(
                    pool_bytes=_summed(recordings, "pool_bytes"),
                    unplanned_bytes=_summed(recordings, "unplanned_bytes"),
                )
            )
        return facts


def _summed(recordings: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """None where a recording does not know."""
    values = [recording.get(name) for recording in recordings]
    return None if None in values else sum(value for value in values if value is not None)


class Replay(Stage["Session"]):
    """Eager and compiled side by side on fresh inputs of every step, from one state; then the detached handle."""

    name: ClassVar[str] = "replay"
    needs: ClassVar[tuple[str, ...]] = ("capture",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark.threads",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.measure.numerics import combined

        exact, mode = live.promises_bits, live.experiment.mode.name
        ways: dict[str, Callable[..., Any]] = {"compiled": live.compiled}
        if live.detached is not None:
            ways["detached"] = live.detached
        results: dict[str, Numerics] = {}
        first_us = None
        steps = live.built.steps
        for at, (way, function) in enumerate(ways.items()):
            for step in range(steps):
                results[f"{way} step {step}"], took = _compared(live, function, step, exact)
                first_us = took if way == "detached" or first_us is None else first_us
                progress((at * steps + step + 1) / (len(ways) * steps))
        target = live.checked.target
        npu = target.device_facts(live.materialised.backend)
        return {
            "replay": facts_of(ReplayFacts(first_us=first_us or 0.0, replays=len(results))),
            "numerics": facts_of(_with_order(evolve(combined(results), note=target.numerics_note(mode)), npu)),
            "npu": None if npu is None else facts_of(npu),
            "texts": dict(target.device_texts(live.materialised.backend)),
            "recompiles": [facts_of(r) for r in _recompiles()],
        }


def _with_order(numerics: Numerics, npu: NpuFacts | None) -> Numerics:
    """Kernels that no event orders ran in one row here and agree with eager; on a device they would race."""
    if npu is None or not npu.unordered:
        return numerics
    return evolve(numerics, passed=False, problems=(*numerics.problems, *npu.unordered[:UNORDERED_SHOWN]))


def _compared(live: Session, function: Callable[..., Any], step: int, exact: bool) -> tuple[Numerics, float]:
    """One step in both worlds: outputs, buffers and inputs afterwards must agree. Also the call's microseconds."""
    import torch

    from npucompose.measure.numerics import compare

    if step == 0:
        live.rewind()
    ours, theirs = live.inputs(step), live.inputs(step)
    seed = live.experiment.seed + step
    torch.manual_seed(seed)
    expected = live.call(live.reference, theirs)
    torch.manual_seed(seed)
    begun = perf_counter()
    got = live.call(function, ours)
    took = (perf_counter() - begun) * 1e6
    world = [(expected, got), (dict(theirs), dict(ours))]
    world += [(r, b) for r, b in zip(live.reference.buffers(), live.built.module.buffers(), strict=True)]
    return compare([w[0] for w in world], [w[1] for w in world], exact=exact, declared=live.declared), took


def _recompiles() -> list[Recompile]:
    """Dynamo's own record of this process: every compilation after the first has a reason."""
    from torch._dynamo.utils import get_compilation_metrics

    return [
        Recompile(compile_id=str(m.compile_id), reason=str(m.recompile_reason).strip())
        for m in get_compilation_metrics()
        if m.recompile_reason
    ]


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
        return {
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


STAGES = StageGraph.of([Compile(), Capture(), Replay(), Benchmark()])
