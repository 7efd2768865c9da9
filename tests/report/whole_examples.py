"""A report with everything in it, and two with what excludes that; how pages and consoles are compared."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

from attrs import evolve
from report_examples import CONTEST, CUT, EXAMPLES, FULL, INDUCTOR, OVERWRITES, TIMELINES, timing
from rich.console import Console

from npucompose.console import console
from npucompose.npu.capture.records import CaptureFinding, CaptureLegality
from npucompose.npu.static_graph.records import Blame, DiagnosisStep, SinkingFacts, SinkingVerdict
from npucompose.npu.torchair.records import GeGraph, NpuFacts
from npucompose.results.graphs import FoldFacts, MoveFacts, Outside, PassFacts, RuleFacts
from npucompose.results.measured import AblationFacts, CallStatistics, MemoryFacts, Numerics, Share, Variant
from npucompose.results.record import CallFacts, GraphFacts, Report, SequenceFacts
from npucompose.results.streams import Timeline
from npucompose.results.streams import TrialVerdict as Weighed

ADAPT = PassFacts(
    name="adapt",
    stage="pre",
    matches=3,
    nodes_before=20,
    nodes_after=26,
    seconds=0.5,
    graph="0",
    rules=(
        RuleFacts(rule="relu_grad", kind="fill_args", op="paddle.relu_grad", matches=1, way="an eager kernel"),
        RuleFacts(
            rule="nll_loss_double",
            kind="compute_in",
            op="aten.nll_loss",
            matches=2,
            casts=3,
            permutes=1,
            unchecked=2,
            rtol=1e-5,
            atol=1e-6,
            max_abs_err=1.86e-8,
        ),
    ),
    max_abs_err=1.86e-8,
)
CLEAN = PassFacts(
    name="cancel_moves",
    stage="pre",
    matches=30,
    nodes_before=60,
    nodes_after=30,
    seconds=2.0,
    graph="1",
    moves=MoveFacts(
        permutes_before=24, permutes_after=2, casts_before=0, casts_after=0, bytes_before=100, bytes_after=10
    ),
    folds=FoldFacts(parameters=("w", "b"), bytes=60),
)
ABLATION = AblationFacts(
    variants=(
        Variant(
            name="all",
            passes=("cse", "adapt"),
            nodes=634,
            kernels=530,
            passes_s=0.25,
            passed=True,
            bitwise=True,
            timing=timing(91.0),
            ratio=1.0,
        ),
        Variant(name="without cse", passes=("adapt",), nodes=1, kernels=1, passed=True, max_abs_err=1e-6, ratio=1.1),
        Variant(name="without adapt", passes=("cse",), passed=False, problem="cannot capture"),
        Variant(name="none", passes=(), passed=False),
    )
)
GE = GeGraph(name="graph_1", nodes=1, shapes="dynamic", control_edges=("a -> b", "b -> c"))
NPU = NpuFacts(
    package="torchair",
    version="2.13.0",
    platform="device",
    fx_graphs=1,
    captures=2,
    replays=1,
    task_updates=0,
    event_records=3,
    event_waits=4,
    streams=2,
)
FACTS = SinkingFacts.from_verdicts(
    path=None,
    fx_graph=SinkingVerdict(value="static", certainty="proven"),
    ge_graph=SinkingVerdict(value="mixed", certainty="derived", evidence=("one", "two")),
    ge_build=SinkingVerdict(value="unknown", certainty="unknown"),
    blame=(
        Blame(
            node="fia",
            operator="npu.fia.default",
            reason="a reason",
            source="model.py:3: y",
            graph="0",
            argument="lens",
            dimension=0,
            symbol="s0",
            rule="rule 5",
        ),
        Blame(node="mm", operator="aten.mm.default", reason="another"),
    ),
    steps=(
        DiagnosisStep(id="S1", title="first", status="ok", fix="nothing=1"),
        DiagnosisStep(id="S2", title="second", status="problem", evidence=("a", "b")),
        DiagnosisStep(id="S3", title="third", status="problem", fix="tiling=sink"),
        DiagnosisStep(id="S4", title="fourth", status="skipped"),
    ),
)
WEIGHED = (
    Weighed(
        applied=True,
        why="11 % faster",
        turns=40,
        plan_us=251.0,
        plan_p90_us=268.0,
        one_stream_us=302.0,
        one_stream_p90_us=330.0,
    ),
    Weighed(
        applied=False,
        why="slower",
        turns=20,
        plan_us=1.0,
        plan_p90_us=2.0,
        one_stream_us=3.0,
        one_stream_p90_us=4.0,
    ),
)
SEQUENCE = SequenceFacts(
    calls=(
        CallFacts(call="call 1", recompiles=1, passed=True, max_abs_err=0.0),
        CallFacts(call="call 2", recompiles=0, passed=False, max_abs_err=1.0),
    ),
    graphs=1,
    captures=2,
    ran=CallStatistics(hits=12, captures=3, replacements=1, eager=2),
)
assert FULL.stages.capture is not None
assert FULL.stages.benchmark is not None
assert FULL.stages.compile is not None
assert FULL.streams is not None
assert INDUCTOR.environment is not None
CAPTURE = CaptureLegality(
    verdict="does not capture",
    certainty="proven",
    evidence=("host_read: aten._local_scalar_dense reads a value on the host at m.py:9 in forward: x.item()",),
    findings=(
        CaptureFinding(
            rule="host_read", code=107027, what="aten._local_scalar_dense reads a value on the host",
            source="m.py:9 in forward: x.item()", fix="torch.where(condition, a, b)", standing="proven",
        ),
        CaptureFinding(rule="opaque", code=None, what="my.op: it must run each time", node="op", graph="graph_0",
                       fix="a kernel", standing="unknown", outside=True),
    ),
    judged_under={"capture_error_mode": "global"},
    streams=2,
    tasks=11,
)  # fmt: skip
RICH = evolve(
    FULL,
    error="somebody said so",
    log_cut_bytes=5 << 30,
    reused=True,
    effective=(*FULL.effective, evolve(FULL.effective[0], option="target")),
    provenance={"mode.name": "command line", "model.name": "conf/model/gpt_decode.yaml, chosen on the command line"},
    passes=(*FULL.passes, ADAPT, CLEAN, evolve(ADAPT, graph="1", seconds=0.25, rules=ADAPT.rules[1:])),
    rejected=("aten.x rejects this", "aten.y rejects that"),
    graphs=(
        evolve(
            FULL.graphs[0],
            partition=CUT,
            overwrites=OVERWRITES,
            npu_refuses=(Outside(node="n", operator="aten.nonzero", reason="a reason."),),
        ),
        GraphFacts(
            id="1", fingerprint="0123456789abcdefg", nodes_before=1, nodes_after=2, fx="dynamic", symbols=("s0",)
        ),
    ),
    recompiles=(*INDUCTOR.recompiles, evolve(INDUCTOR.recompiles[0], compile_id="0/2", call=None, avoid=None)),
    streams=evolve(FULL.streams, validated=False, trials=WEIGHED, why="in words", device="ascend910b"),
    sinking=FACTS,
    capture=CAPTURE,
    stages=evolve(
        FULL.stages,
        ablation=ABLATION,
        modes=CONTEST,
        sequence=SEQUENCE,
        capture=evolve(FULL.stages.capture, why_executor="no compiler", why_attached="gears"),
        replay=evolve(FULL.stages.replay, detached_ended="at step 3"),
        compile=evolve(FULL.stages.compile, aot_s=None),
    ),
    numerics=Numerics(
        reference="eager",
        max_abs_err=3e-5,
        bitwise=False,
        passed=True,
        compared=1,
        note="a note",
        stride_mismatches=("[0]", "[1]"),
        tracing=Share(max_abs_err=1.8e-7, bitwise=False, passed=True),
        passes=Share(max_abs_err=None, bitwise=False, passed=True),
        replay=Share(max_abs_err=0.0, bitwise=True, passed=True),
        model="the model keeps state",
    ),
    memory=evolve(FULL.memory, shared_pool_bytes=5000),
    npu=NPU,
    expectations=(
        *EXAMPLES["disappointing"].expectations,
        evolve(EXAMPLES["disappointing"].expectations[0], held=True, name="events", wanted="w" * 300),
    ),
)
PREDICTED = evolve(
    RICH,
    error=None,
    reused=False,
    log_cut_bytes=0,
    npu=evolve(NPU, platform="simulated", ge_graphs=(GE, evolve(GE, name="two", nodes=5)), streams=None),
    streams=evolve(FULL.streams, applied=False, why="too small", threads=None, device="ascend910b"),
    memory=MemoryFacts(pool_bytes=2048, peak_rss_bytes=1 << 30),
    effective=FULL.effective[:4],
    expectations=(),
    numerics=evolve(RICH.numerics, max_abs_err=None, passed=True, model=None),
    environment=evolve(FULL.environment, cpu={"model": "a CPU", "cores": 2}, git_dirty=True),
    records=(),
)
WEIGHED_ALL = evolve(
    PREDICTED,
    streams=evolve(FULL.streams, trials=(WEIGHED[0],), why="11 % faster", nodes={}),
    stages=evolve(PREDICTED.stages, sequence=evolve(SEQUENCE, ran=None), capture=None, modes=None, ablation=None),
    sinking=evolve(FACTS, path=4, product="ascend910b"),
    npu=evolve(NPU, ge_graphs=()),
    expectations=EXAMPLES["disappointing"].expectations[1:],
)
WHOLE: dict[str, Report] = {"rich": RICH, "predicted": PREDICTED, "weighed": WEIGHED_ALL}
LINES = (
    *TIMELINES,
    (
        "graph_0",
        Timeline(
            source="measured",
            nodes=("mm", "a", "b", "c"),
            streams=("s1", "default", "s1", "a_stream_of_a_long_name"),
            start_us=(0.0, 5.0, 12.0, 20.0),
            end_us=(10.0, 12.0, 20.0, 20.01),
            events=(("a", "b"), ("mm", "c")),
        ),
    ),
    ("short", Timeline(source="predicted", nodes=("a",), streams=("s",), start_us=(0.0,), end_us=(0.5,))),
    ("empty", Timeline(source="predicted", nodes=(), streams=(), start_us=(), end_us=())),
)


def on_lines(page: str) -> str:
    return page.replace("><", ">\n<")


def parts(page: str) -> list[str]:
    """The head of a page, then each of its sections, without their numbers."""
    return re.split("(?=<section )", re.sub(r"(section|heading)-\d+", r"\1-N", on_lines(page)))


def plain(show: Callable[[Console], None], width: int = 100) -> str:
    made = console(width=width, record=True, file=io.StringIO())
    show(made)
    return made.export_text()
