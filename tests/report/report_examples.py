"""Reports of runs that never were, one for each thing a summary has to show."""

from __future__ import annotations

from attrs import evolve

from npucompose.npu.static_graph.records import Blame, DiagnosisStep, SinkingFacts, SinkingVerdict
from npucompose.results.graphs import Outside, Partition, PassFacts
from npucompose.results.measured import Behind, MemoryFacts, ModeFacts, ModeTime, Numerics, Overwrites, Share
from npucompose.results.record import (
    BenchmarkFacts,
    CaptureFacts,
    CompileTimes,
    Effective,
    Environment,
    Expectation,
    GraphFacts,
    Recompile,
    ReplayFacts,
    Report,
    StageRun,
    Stages,
    TimeSamples,
)
from npucompose.results.streams import StreamFacts, Timeline


def timing(microseconds: float) -> TimeSamples:
    samples = (microseconds, microseconds * 1.5)
    return TimeSamples(
        samples_us=samples,
        p50_us=microseconds,
        p90_us=microseconds * 1.4,
        p99_us=microseconds * 1.49,
        mean_us=microseconds * 1.25,
    )


REPLAY = timing(517.04)
FULL_BENCHMARK = BenchmarkFacts(
    samples_us=REPLAY.samples_us,
    p50_us=REPLAY.p50_us,
    p90_us=REPLAY.p90_us,
    p99_us=REPLAY.p99_us,
    mean_us=REPLAY.mean_us,
    baselines={"eager": timing(990.1), "compiled": timing(1731.0)},
    speedup={"eager": 1.914, "compiled": 3.35},
    speedup_compiled={"eager": 0.57},
)
FULL = Report(
    key="0" * 64,
    status="ok",
    experiment={
        "model": {"name": "gpt_decode", "options": {"layers": 4}},
        "target": {"name": "cpu", "options": {}},
        "mode": {"name": "reduce-overhead"},
        "shapes": {"name": "static", "dynamic": False},
    },
    provenance={"mode.name": "command line"},
    effective=tuple(
        Effective(
            option=f"compiler.ge_config.option_{number}", requested=True, effective=None, why="takes effect in GE only"
        )
        for number in range(6)
    ),
    environment=Environment(versions={"torch": "2.13.0"}, platform="Linux", git_commit="a" * 40, git_dirty=False),
    graphs=(GraphFacts(id="0", fingerprint="f", nodes_before=134, nodes_after=182, fx="static"),),
    passes=(
        PassFacts(name="cse", stage="pre", matches=1, nodes_before=135, nodes_after=134, seconds=0.0021, graph="0"),
        PassFacts(name="stream_plan", stage="post", matches=24, nodes_before=134, nodes_after=182, seconds=0.0042),
    ),
    streams=StreamFacts(
        streams=2,
        events=8,
        nodes={"mm": "default", "mm_1": "s1"},
        validated=True,
        cost="measured",
        predicted_us=2700.0,
        serial_us=5200.0,
        threads=2,
        measured_us=2640.0,
        measured_serial_us=5260.0,
        prediction_error=2700 / 2640 - 1,
    ),
    stages=Stages(
        compile=CompileTimes(dynamo_s=1.0, aot_s=0.5, passes_s=0.01, backend_s=0.1, total_s=1.7),
        capture=CaptureFacts(seconds=0.02, kernels=126, executor="native"),
        replay=ReplayFacts(first_us=611.0, replays=3),
        benchmark=FULL_BENCHMARK,
    ),
    numerics=Numerics(reference="eager", max_abs_err=0.0, bitwise=True, passed=True, compared=9),
    memory=MemoryFacts(pool_bytes=9421, unplanned_bytes=163_840, live_bytes=9216, peak_rss_bytes=512 << 20),
    records=(
        StageRun(stage="compile", key="1" * 64, reused=True, seconds=1.7),
        StageRun(stage="benchmark", key="2" * 64, reused=False, seconds=2.25),
    ),
)

CUT = Partition(
    segments=3,
    outside=tuple(
        Outside(node=node, operator=name, reason="a reason.", source=f"/home/me/model.py:{line}: y = f(x)")
        for node, name, line in (("cond", "cond", 41), ("nonzero_1", "aten.nonzero", 50))
    ),
)
INDUCTOR = evolve(
    FULL,
    sinking=SinkingFacts.from_verdicts(
        path=3,
        fx_graph=SinkingVerdict(value="dynamic", certainty="derived", evidence=("lens[0] is the number s0",)),
        ge_graph=SinkingVerdict(value="static", certainty="derived"),
        ge_build=SinkingVerdict(value="dynamic", certainty="derived", evidence=("rule 5: fia: tiling sink is off",)),
        product="ascend910b",
        blame=(Blame(node="fia", operator="npu.fia.default", reason="tiling sink is off", dimension=0, rule="rule 5"),),
        steps=(DiagnosisStep(id="S4", title="operators", status="problem", evidence=("fia",), fix="tiling=sink"),),
    ),
    experiment={**FULL.experiment, "mode": {"name": "max-autotune"}, "shapes": {"name": "dynamic"}},
    effective=(),
    graphs=(
        GraphFacts(id="0", fingerprint="f", nodes_before=10, nodes_after=9, fx="dynamic", symbols=("s0", "s1")),
        GraphFacts(id="1", fingerprint="g", nodes_before=5, nodes_after=5, fx="static"),
    ),
    recompiles=(
        Recompile(
            compile_id="0/1",
            reason="tensor 'x' size mismatch at index 0. expected 4, actual 6",
            argument="x",
            call="call 1 of model.sequence (x.0: 6)",
            avoid="shapes=dynamic, or shapes.mark_dynamic: {x: [0]}: a symbol from the first call on",
        ),
    ),
    stages=evolve(
        FULL.stages,
        capture=None,
        replay=None,
        benchmark=evolve(
            FULL_BENCHMARK,
            candidate="compiled",
            baselines={"eager": timing(990.1)},
            speedup={"eager": 1.914},
            speedup_compiled={},
        ),
    ),
    numerics=Numerics(
        reference="eager",
        max_abs_err=3.1e-6,
        bitwise=False,
        passed=True,
        compared=9,
        stride_mismatches=("[0]",),
        tolerance={"float32": {"rtol": 1e-4, "atol": 1e-5}},
    ),
    memory=MemoryFacts(peak_rss_bytes=3 << 30),
)

WRONG = evolve(
    FULL,
    status="numerics_failed",
    numerics=Numerics(
        reference="eager",
        max_abs_err=0.25,
        bitwise=False,
        passed=False,
        compared=9,
        problems=("step 1, [0]: tensor float32[4] differs by up to 0.25, tolerance 1e-05 + 0.0001 * |reference|",),
    ),
)

EXACT = Share(max_abs_err=0.0, bitwise=True, passed=True)
TRACED = evolve(
    FULL,
    numerics=Numerics(
        reference="eager",
        max_abs_err=1.79e-7,
        bitwise=False,
        passed=True,
        compared=9,
        tolerance={"float32": {"rtol": 1e-4, "atol": 1e-5}},
        tracing=Share(max_abs_err=1.79e-7, bitwise=False, passed=True),
        replay=EXACT,
        model="the model keeps state outside its buffers, in 'cache.layers[0].keys' and 3 more: a second eager call "
        "differs by up to 0.283. It is rewound with the buffers, from a deep copy",
    ),
)

MISTRACED = evolve(
    WRONG,
    numerics=evolve(
        WRONG.numerics,
        problems=("step 1, tracing: [0]: tensor float32[4] differs by up to 0.25",),
        tracing=Share(max_abs_err=0.25, bitwise=False, passed=False),
        passes=Share(max_abs_err=1e-6, bitwise=False, passed=True),
        replay=EXACT,
        cause="tracing",
    ),
)

DIFFERS = (
    "the model differs from itself: called twice from one state, eager differs by up to 0.25; none of its attributes"
)
UNSTEADY = evolve(
    WRONG, numerics=evolve(WRONG.numerics, max_abs_err=None, problems=(DIFFERS,), model=DIFFERS, cause="model")
)

DISAPPOINTING = evolve(
    FULL,
    status="expect_failed",
    reused=True,
    expectations=(
        Expectation(name="streams", wanted=3, got=2, held=False, evidence=("default: 4 nodes, s1: 2 nodes",)),
        Expectation(name="bitwise", wanted=True, got=True, held=True),
    ),
)

CRASHED = Report(
    key="0" * 64,
    status="crashed",
    experiment=FULL.experiment,
    error="the worker died of SIGKILL and sent no result. Somebody killed it, or memory ran out.",
    last_lines=("benchmark: [started]", "about to die"),
    records=FULL.records[:1],
)

ILLEGAL = Report(
    key="",
    status="illegal",
    experiment={"mode": {"name": "eager"}},
    error="unknown pass 'ces'. Did you mean 'cse'? Choices: cse, dead_code.",
)

CONTEST = ModeFacts(
    fastest="max-autotune",
    won=True,
    modes=(
        ModeTime(
            mode="reduce-overhead",
            candidate="replay",
            compile_s=1.7,
            passed=True,
            bitwise=True,
            max_abs_err=0.0,
            timing=evolve(timing(517.04), samples_us=(517.04,) * 24),
            behind=Behind(ratio=1.21, low=1.18, high=1.25),
        ),
        ModeTime(
            mode="max-autotune",
            candidate="compiled",
            compile_s=35.2,
            passed=True,
            max_abs_err=3.1e-6,
            idle=("passes.stream_plan",),
            timing=evolve(timing(427.3), samples_us=(427.3,) * 24),
        ),
        ModeTime(mode="npugraph_ex", passed=False, problem="cannot capture aten.nonzero"),
        ModeTime(
            mode="eager",
            candidate="eager",
            compile_s=0.0,
            passed=True,
            bitwise=True,
            max_abs_err=0.0,
            timing=evolve(timing(812.0), samples_us=(812.0,) * 24),
            behind=Behind(ratio=1.9, low=1.8, high=2.0),
        ),
    ),
)
CONTESTED = evolve(FULL, stages=evolve(FULL.stages, modes=CONTEST))

CUT_RUN = evolve(FULL, graphs=(evolve(FULL.graphs[0], partition=CUT),))
OVERWRITES = Overwrites(runs=3, option="compiler.npugraph_ex.clone_output")
REPEATED_RUN = evolve(FULL, graphs=(evolve(FULL.graphs[0], overwrites=OVERWRITES),))
EXAMPLES = {
    "full": FULL,
    "inductor": INDUCTOR,
    "wrong": WRONG,
    "disappointing": DISAPPOINTING,
    "crashed": CRASHED,
    "illegal": ILLEGAL,
}

JUDGED = {"traced": TRACED, "mistraced": MISTRACED, "unsteady": UNSTEADY}
"""Runs whose results are not eager's bit for bit, by whose difference it is."""

TIMELINES = [
    (
        "graph_0",
        Timeline(
            source="predicted",
            nodes=("mm", "mm_1"),
            streams=("default", "stream1"),
            start_us=(0.0, 10.0),
            end_us=(10.0, 15.0),
            events=(("mm", "mm_1"),),
            counters={"bytes alive": ((0.0, 1024.0), (10.0, 4096.0), (15.0, 0.0))},
        ),
    )
]
