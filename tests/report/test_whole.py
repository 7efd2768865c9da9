"""Every part of a report in each of its forms, as it was reviewed: what the examples of single claims leave out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve
from hostile import HOSTILE
from report_examples import CONTEST, CRASHED, CUT, EXAMPLES, FULL, INDUCTOR, JUDGED, OVERWRITES, TIMELINES, timing
from rich.console import Console

from npucompose.console import console
from npucompose.errors import ConfigError
from npucompose.report import (
    adapted,
    compare,
    comparison,
    doctor,
    explain,
    html,
    pareto,
    scatter,
    settings,
    svg,
    terminal,
    trace,
)
from npucompose.report.axis import Axis
from npucompose.report.comparison import Compared, render
from npucompose.report.comparison_script import SCRIPT
from npucompose.report.differences import (
    CUT as WINDOW,
)
from npucompose.report.differences import (
    as_json,
    beside_each_other,
    difference_markdown,
    difference_text,
    differences,
    facts,
)
from npucompose.report.doctor import Diagnosis, Machine, Torch, Usable
from npucompose.report.style import STYLE, WIDE
from npucompose.report.timeline import drawn
from npucompose.report.tracked import Tracked
from npucompose.report.words import (
    as_bytes,
    as_count,
    as_time,
    contract_words,
    log_words,
    numerics_notes,
    part_words,
    plan_words,
    ran_as,
    status_words,
    trial_words,
    why_untimed,
)
from npucompose.schema.ablation import AblationFacts, Variant
from npucompose.schema.adapted import Adaptation, DryRun
from npucompose.schema.calls import CallStatistics
from npucompose.schema.figures import Figures
from npucompose.schema.partition import Outside
from npucompose.schema.passes import FoldFacts, MoveFacts, RuleFacts
from npucompose.schema.record import (
    CallFacts,
    GeGraph,
    GraphFacts,
    Memory,
    NpuFacts,
    Numerics,
    PassFacts,
    Report,
    SequenceFacts,
    Share,
    StreamFacts,
)
from npucompose.schema.setting import Setting
from npucompose.schema.sinking import Blame, Explanation, SinkingFacts, Step, Verdict
from npucompose.schema.streams import Timeline
from npucompose.schema.streams import Verdict as Weighed

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
FACTS = SinkingFacts.of(
    path=None,
    fx_graph=Verdict(value="static", certainty="proven"),
    ge_graph=Verdict(value="mixed", certainty="derived", evidence=("one", "two")),
    ge_build=Verdict(value="unknown", certainty="unknown"),
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
            rule="row 5",
        ),
        Blame(node="mm", operator="aten.mm.default", reason="another"),
    ),
    steps=(
        Step(id="S1", title="first", status="ok", fix="nothing=1"),
        Step(id="S2", title="second", status="problem", evidence=("a", "b")),
        Step(id="S3", title="third", status="problem", fix="tiling=sink"),
        Step(id="S4", title="fourth", status="skipped"),
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
    npu=evolve(NPU, platform="stand-in", ge_graphs=(GE, evolve(GE, name="two", nodes=5)), streams=None),
    streams=evolve(FULL.streams, applied=False, why="too small", threads=None, device="ascend910b"),
    memory=Memory(pool_bytes=2048, peak_rss_bytes=1 << 30),
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


def plain(show: Callable[[Console], None], width: int = 100) -> str:
    made = console(width=width, record=True, file=io.StringIO())
    show(made)
    return made.export_text()


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_with_everything_reads_like_this(name: str, golden: Any) -> None:
    styled = console(width=100, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    terminal.render(WHOLE[name], styled, "/runs/report.json")
    golden(f"report/whole_{name}.txt", styled.export_text(styles=True).replace("\x1b", "^"))


@pytest.mark.parametrize("name", [*WHOLE, "inductor", "wrong", "crashed", "unsteady"])
def test_the_page_of_a_run_with_everything_is_this(name: str, golden: Any) -> None:
    report = {**WHOLE, **EXAMPLES, **JUDGED}[name]
    page = html.render(report, LINES if name == "rich" else ())
    golden(f"report/whole_{name}.html", on_lines(page.replace(STYLE, "STYLE")))


def test_all_that_is_compared_of_a_run(golden: Any) -> None:
    told = [f"{f.part} | {f.name} | {f.text} | {f.said_by}" for f in facts(RICH)]
    found = differences(RICH, evolve(INDUCTOR, provenance={"mode": "conf/mode/x.yaml"}))
    assert "—" in as_json(differences(RICH, evolve(RICH, error="—")))
    forms = [
        as_json(found)[:300],
        difference_text(found).plain,
        difference_markdown(found),
        difference_text(found).markup,
    ]
    golden("report/differences.txt", "\n\n".join(["\n".join(told), *forms]) + "\n")


def test_long_texts_are_cut_around_their_first_difference() -> None:
    for length in (WINDOW, WINDOW + 1):
        one, other = "a" * length, "a" * (length - 1) + "b"
        shown = beside_each_other(one, other)
        assert (shown == (one, other)) == (length == WINDOW)
    assert beside_each_other("a" * 100 + "x" + "b" * 100, "a" * 100 + "y") == (
        "…" + "a" * 30 + "x" + "b" * 29 + "…",
        "…" + "a" * 30 + "y",
    )
    assert beside_each_other("c" * 70, "c" * 65) == ("…" + "c" * 35, "…" + "c" * 30)
    assert beside_each_other("x" * 90, "y") == ("x" * 60 + "…", "y")
    assert beside_each_other("y", "x" * 90) == ("y", "x" * 60 + "…")


def compared(reports: dict[str, Report]) -> Iterator[Compared]:
    lines = [
        compare.Line(
            name=f"{name} mode=x",
            status=report.status,
            figures=Figures.of(report),
            error=report.error,
            work="the work" if "model" in report.experiment else "",
        )
        for name, report in reports.items()
    ]
    for line, report in zip(pareto.with_front(lines), reports.values(), strict=True):
        yield Compared(line=line, report=None if report.status == "illegal" else report)


def test_the_page_of_many_runs_is_this(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list(compared({**EXAMPLES, "rich": RICH}))
    page = render(runs, {"ok": 3, "crashed": 1, "illegal": 1, "numerics_failed": 1, "expect_failed": 9})
    golden("report/comparison.html", on_lines(page.replace(SCRIPT, "SCRIPT").replace(STYLE + WIDE, "STYLE")))
    lines = [run.line for run in runs]
    shown = [plain(lambda made, width=width: made.print(compare.as_table(lines)), width) for width in (160, 70, 50)]
    styled = console(width=160, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    styled.print(compare.as_table(lines))
    shown.append(styled.export_text(styles=True).replace("\x1b", "^"))
    golden("report/compared.txt", "\n".join([*shown, compare.as_markdown(lines), compare.as_csv(lines)]))
    assert render([], {}).count("<tr>") == 1
    assert "more kinds of work" not in page
    assert "process peak over median latency" in page
    planned = render(list(compared({"full": FULL, "disappointing": EXAMPLES["disappointing"]})), {"ok": 2})
    assert "<figcaption>pool over median latency" in planned
    monkeypatch.setattr(comparison, "MOST_PLOTS", 0)
    assert '<p class="dim">1 more kinds of work are in the table.</p>' in render(runs, {"ok": 3})


def test_what_a_tracker_is_told(golden: Any, tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-01" / "12-00-00"
    folder.mkdir(parents=True)
    for name in ("report.json", "trace.json", "other"):
        (folder / name).touch()
    told = [attrs.asdict(Tracked.of(report, folder)) for report in (RICH, CRASHED, EXAMPLES["wrong"])]
    for one in told:
        one["files"] = [path.name for path in one["files"]]
    golden("report/tracked.json", json.dumps(told, indent=1, default=str) + "\n")


def test_pictures_are_these(golden: Any) -> None:
    many = [100.0 + n for n in range(200)] + [100_000.0]
    nodes = {f"n{k}": "default" if k % 3 else f"s{k % 4}" for k in range(9)}
    shapes = {
        "histogram": svg.distributions({"replay": many, "a name of some length": [120.0, 130.0, 5000.0]}),
        "few": svg.distributions({"replay": [5.0] * 30, "eager": [5.0] * 31}),
        "stacked": svg.stacked("compilation", {f"part {k}": float(k) for k in range(8)}),
        "nothing stacked": svg.stacked("compilation", {"none": 0.0}),
        "lanes": svg.lanes(nodes),
        "no lanes": svg.lanes({}),
        "timelines": "".join(drawn(LINES)),
        "scatter": scatter.scatter(
            [
                scatter.Dot(label="1", name="one", front=True, at=(1.0, 5.0, 3.0)),
                scatter.Dot(label="2", name="two", front=False, at=(100.0, 6.0, 3.0)),
                scatter.Dot(label="3", name="three", front=True, at=(90.0, 5.5, 3.0)),
            ],
            (0, 1),
            ("x", "y"),
            (as_time, lambda value: f"{value:.1f}"),
        ),
        "one dot": scatter.scatter(
            [scatter.Dot(label="1", name="one", front=True, at=(1.0, 0.0, 3.0))],
            (2, 1),
            ("x", "y"),
            (as_time, as_time),
        ),
    }
    golden("report/pictures.txt", "\n\n".join(f"# {name}\n{on_lines(text)}" for name, text in shapes.items()) + "\n")


def test_the_slowest_sample_is_in_the_last_bin_and_the_fastest_in_the_first() -> None:
    drawn_bins = list(svg._histogram([0.0, 0.0, 50.0, 100.0], Axis.between(0, 100), 60, "c0"))
    width = (svg.WIDTH - svg.LABEL) / svg.BINS
    lefts = [f'x="{svg._place(0, Axis.between(0, 1)) + n * width:.2f}'.rstrip("0").rstrip(".") for n in (0, 30, 59)]
    assert [any(left in bar for bar in drawn_bins) for left in lefts] == [True] * 3
    assert len(drawn_bins) == 3
    assert f'height="{svg.ROW - 14}"' in drawn_bins[0]
    assert f'height="{(svg.ROW - 14) // 2}"' in drawn_bins[2]


def test_only_so_much_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.report import timeline

    monkeypatch.setattr(timeline, "MOST_NODES", 2)
    monkeypatch.setattr(timeline, "MOST_EVENTS", 1)
    (figure,) = [text for text in drawn(LINES) if "measured" in text]
    assert "4 kernels · the first 2 drawn · 2 events · 1 drawn" in figure
    assert (figure.count('class="kernel'), figure.count('class="event"')) == (2, 0)
    monkeypatch.setattr(timeline, "MOST_NODES", 3)
    assert next(text for text in drawn(LINES) if "measured" in text).count('class="event"') == 1
    monkeypatch.setattr(svg, "MOST_NODES", 2)
    assert svg.lanes({"a": "s", "b": "s", "c": "t"}).count("<rect") == 2


def test_a_trace_has_every_entry_in_the_order_of_time(golden: Any) -> None:
    golden("report/trace.txt", "\n".join(map(str, trace.entries(LINES))) + "\n" + trace.text(LINES[:1])[:60] + "\n")


@pytest.mark.parametrize(
    ("made", "value", "place"),
    [
        (lambda: Axis.between(1, 100), 10, 0.5),
        (lambda: Axis.between(0, 9), 3, 1 / 3),
        (lambda: Axis.between(1, 10), 10**0.5, 0.5),
        (lambda: Axis.between(1, 9.99), 5.495, 0.5),
        (lambda: Axis.between(-1, 100), 49.5, 0.5),
        (lambda: Axis.between(10, 10), 10, 0.5),
        (lambda: Axis.between(0, 0), 0.5, 0.5),
    ],
)
def test_an_axis_places_values_and_finds_them_again(made: Callable[[], Axis], value: float, place: float) -> None:
    axis = made()
    assert axis.place(value) == pytest.approx(place)
    assert axis.value(place) == pytest.approx(value)
    assert list(axis.marks(3)) == pytest.approx([axis.low, axis.value(0.5), axis.high])


# Words.


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (lambda: as_time(0), "0.0 µs"),
        (lambda: as_time(999.9), "999.9 µs"),
        (lambda: as_time(1000), "1.00 ms"),
        (lambda: as_time(999_990), "999.99 ms"),
        (lambda: as_time(1e6), "1.00 s"),
        (lambda: as_bytes(0), "0 B"),
        (lambda: as_bytes(1023), "1023 B"),
        (lambda: as_bytes(1024), "1.0 KiB"),
        (lambda: as_bytes(1024**2), "1.0 MiB"),
        (lambda: as_bytes(1024**3 * 3), "3.0 GiB"),
        (lambda: as_bytes(1024**4 * 2048), "2048.0 TiB"),
        (lambda: as_count(1, "match", "matches"), "1 match"),
        (lambda: as_count(0, "match", "matches"), "0 matches"),
        (lambda: as_count(2, "node"), "2 nodes"),
        (lambda: contract_words(0, 0), "every bit"),
        (lambda: contract_words(1e-5, 0), "rtol 1e-05"),
        (lambda: contract_words(0, 1e-6), "atol 1e-06"),
        (lambda: log_words(FULL), None),
        (lambda: log_words(RICH), "run.log was cut: 5.0 GiB beyond pipeline.log_limit_mb are not kept"),
        (
            lambda: ran_as(CallStatistics(hits=1, captures=2, replacements=0, eager=3)),
            "1 replayed · 2 recorded · 3 without a recording",
        ),
        (
            lambda: ran_as(CallStatistics(hits=1, captures=2, replacements=1)),
            "1 replayed · 2 recorded, 1 of them in another's place · 0 without a recording",
        ),
        (lambda: plan_words(StreamFacts(streams=1, events=0)), ""),
        (lambda: plan_words(StreamFacts(streams=1, events=0, why="x")), ""),
        (lambda: plan_words(StreamFacts(streams=1, events=0, applied=False)), ""),
        (lambda: plan_words(StreamFacts(streams=1, events=0, applied=False, why="x")), "plan not applied: x"),
        (
            lambda: plan_words(StreamFacts(streams=1, events=0, trials=WEIGHED, why="x")),
            "plan applied in 1 of 2 recordings: x",
        ),
        (lambda: plan_words(StreamFacts(streams=1, events=0, trials=WEIGHED[:1], why="x")), "plan applied: x"),
        (
            lambda: trial_words(StreamFacts(streams=1, events=0, trials=WEIGHED, predicted_us=1.0, serial_us=2.0)),
            "measured 252.0 µs (p90 270.0 µs) against 305.0 µs (p90 334.0 µs) on one stream, p10 of 20 turns, "
            "11 % faster, slower, predicted 1.0 µs against 2.0 µs",
        ),
        (lambda: trial_words(StreamFacts(streams=1, events=0, predicted_us=1.0)), ""),
        (
            lambda: trial_words(StreamFacts(streams=1, events=0, trials=(Weighed(applied=False, why="one stream"),))),
            "one stream",
        ),
        (lambda: why_untimed(FULL), "the results are wrong"),
        (lambda: why_untimed(JUDGED["mistraced"]), "tracing changed the results"),
        (lambda: why_untimed(JUDGED["unsteady"]), "there is no reference to compare with"),
        (lambda: status_words(JUDGED["mistraced"]), "tracing changed the results"),
        (lambda: status_words(evolve(FULL, status="numerics_failed", numerics=None)), "wrong results"),
        (
            lambda: numerics_notes(evolve(RICH, numerics=None)),
            ["the comparison of the detached handle ended at step 3"],
        ),
        (
            lambda: numerics_notes(evolve(FULL, numerics=evolve(RICH.numerics, cause="model", note=None))),
            ["replay exact; passes changed shapes, structure or infinities; tracing changed 1.8e-07"],
        ),
        (lambda: part_words(Numerics(reference="eager", max_abs_err=0.0, bitwise=True, passed=True)), None),
    ],
)
def test_numbers_and_facts_in_words(said: Callable[[], Any], wanted: Any) -> None:
    assert said() == wanted


def test_what_would_be_adapted_and_why_a_graph_would_sink(golden: Any) -> None:
    run = DryRun(
        asked={"model": "paddle", "target": "cpu"},
        graphs=2,
        adaptations=(
            Adaptation(
                graph="graph_0",
                rule="relu_grad",
                kind="fill_args",
                op="paddle.relu_grad",
                node="relu_grad",
                source="paddle.py:12: return",
                before="relu_grad: f32[4]",
                after=("a: f32[4]", "b: f32[4]"),
                rtol=1e-5,
                range_check=True,
            ),
            Adaptation(
                graph="graph_1",
                rule="no",
                kind="reject",
                op="aten.x",
                node="x",
                before="x: f32[4]",
                rejected="not here",
            ),
        ),
        untouched=("aten.y of y",),
        compiler="it fails",
    )
    explained = Explanation(
        asked={"model": "gpt", "mode": "max-autotune", "file": "a.yaml"},
        sinking=FACTS,
        compile_s=1.234,
        diagnosis_s=0.5,
        implied=("implied",),
        recording=("recorded",),
        notes=("noted",),
    )
    stored = evolve(explained, compile_s=0.0, sinking=evolve(FACTS, path=3, blame=FACTS.blame[1:]))
    parts = [
        plain(lambda made: adapted.render(run, made)),
        plain(lambda made: adapted.render(DryRun(asked={"model": "x"}, graphs=1), made)),
        adapted.as_json(run),
        plain(lambda made: explain.render(explained, made)),
        plain(lambda made: explain.render(stored, made)),
        plain(lambda made: explain.render(stored, made), 44),
        plain(lambda made: adapted.render(run, made), 20),
        plain(lambda made: terminal.render(RICH, made, "/a long path of a folder/report.json"), 50),
        explain.as_json(stored),
    ]
    golden("report/explained.txt", "\n\n".join(parts) + "\n")
    assert all(line.plain for line in adapted.lines(run))
    assert [str(line.style) for line in adapted.lines(run)] == [
        *("bold", "cyan", "red", "green", "green", "cyan", "red", "bold red", "dim", "yellow", "bold"),
    ]


def test_who_set_what_reads_like_this(golden: Any) -> None:
    given = [
        Setting(option="mode.name", value="eager", said_by="conf/mode/eager.yaml, chosen on the command line"),
        Setting(option="model.x", value=["ä"], said_by="mine.yaml"),
        Setting(option="seed", value=3, said_by="command line"),
        Setting(option="compiler.a", value=True, said_by="default"),
        Setting(option="compiler.b", value=1, said_by="conf/compiler/default.yaml", why_not="acts in GE only"),
        Setting(option="compiler.c", value=2, said_by="conf/compiler/default.yaml"),
        Setting(option="strict", value="on", said_by="default"),
    ]
    shown = [plain(lambda made: settings.render(given, made))]
    shown.append(plain(lambda made: settings.render(given, made, under="compiler")))
    shown.append(plain(lambda made: settings.render(given, made), 12))
    shown += [settings.as_json(given, under="mode"), settings.as_json(given)]
    golden("report/settings.txt", "\n\n".join(shown) + "\n")
    assert [one.option for one in settings.below(given, "compiler.a")] == ["compiler.a"]
    with pytest.raises(ConfigError, match="unknown option 'comp' @ --under"):
        settings.below(given, "comp")


# The doctor.

MACHINE = Machine(
    cpu="A CPU",
    architecture="x86_64",
    system="Linux",
    cores=4,
    memory_gib=None,
    compiler="g++ 12",
    nvidia=("H200", "H100"),
    npu="npu-smi 25",
    cann={"ASCEND_HOME_PATH": "/cann", "ASCEND_TOOLKIT_HOME": "/kit"},
)
TORCH = Torch(version="2.13.0+cu130", threads=4, capability="AVX512", cuda_build="13.0", cuda_devices=("a", "b"))
BROKEN = Torch(error="no module named torch")


def test_a_diagnosis_reads_like_this(golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = Diagnosis(
        python="3.11",
        packages={"torch": "2.13.0", "torch_npu": None, "numpy": "2"},
        torch=TORCH,
        machine=MACHINE,
        targets=(
            Usable(name="cpu", usable=True, needs="torch", lacks="no compiler"),
            Usable(name="cuda", usable=True, needs="CUDA", has="two devices"),
            Usable(name="null_device", usable=True, needs="torch"),
            Usable(name="npu", usable=False, needs="a device", lacks="CANN is missing."),
        ),
        extras=(
            Usable(name="mlflow", usable=False, needs="mlflow", lacks="mlflow: pip install"),
            Usable(name="ray", usable=True, needs="ray"),
        ),
        store="/store (none yet)",
        native_replayer="built: here",
        notes=("a note",),
    )
    doctor.show(found)
    bare = evolve(
        found,
        torch=BROKEN,
        machine=evolve(MACHINE, nvidia=(), npu=None, cann={}, compiler=None, memory_gib=2.5),
        notes=(),
        targets=(Usable(name="cpu", usable=False, needs="torch", lacks="it"),),
    )
    doctor.show(bare)
    doctor.show(bare, as_json=True)
    golden("report/doctor.txt", capsys.readouterr().out)
    assert (found.exit_status, bare.exit_status) == (0, 3)


@pytest.mark.parametrize(
    ("torch", "machine", "usable"),
    [(TORCH, MACHINE, True), (BROKEN, MACHINE, False), (evolve(TORCH, cuda_devices=()), MACHINE, False)],
)
def test_a_target_says_what_it_has_or_lacks(torch: Torch, machine: Machine, usable: bool) -> None:
    found = {one.name: one for one in doctor.targets(torch, machine)}
    assert found["cuda"].usable is usable
    assert bool(found["cuda"].has) is usable
    assert bool(found["cuda"].lacks) is not usable
    if usable:
        assert found["cuda"].has.startswith("a, b, CUDA 13.0. ")
    if torch is BROKEN:
        assert {found[name].lacks for name in ("cpu", "cuda", "null_device")} == {
            "torch cannot be imported: no module named torch"
        }
        assert not any(found[name].usable for name in ("cpu", "cuda", "null_device"))
    else:
        assert (found["cpu"].lacks, found["null_device"].lacks) == ("", "")
        assert not torch.cuda_devices or found["null_device"].usable
    assert not torch.version or torch.cuda_devices or "finds no device" in found["cuda"].lacks


def test_what_is_installed_and_set_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    good = evolve(TORCH, version="2.13.0")
    assert doctor.notes(good, MACHINE, {"torch_npu": "2.13.0"}) == ()
    assert doctor.notes(good, evolve(MACHINE, cann={}), {"torch_npu": None}) == ()
    assert doctor.notes(BROKEN, MACHINE, {}) == ()
    assert len(doctor.notes(good, evolve(MACHINE, cann={}), {"torch_npu": "2.13.0"})) == 1
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    (note,) = doctor.notes(good, MACHINE, {})
    assert note.startswith(f"the cache is not believed: {tmp_path / 'cache'} can be written by others")
    (tmp_path / "cache").chmod(0o700)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.notes(good, MACHINE, {}) == ("CXX=no-such-compiler is no program; the C++ compiler is g++ 12.",)
    monkeypatch.setenv("CXX", "sh")
    assert doctor.notes(good, MACHINE, {}) == ()


def test_the_store_is_told_where_it_lies(tmp_path: Path) -> None:
    store = tmp_path / "a" / "b"
    assert doctor.state_of(store) == f"{store} (none yet)"
    (store / "c").mkdir(parents=True)
    (store / "c" / "one").write_bytes(b"x" * 2**19)
    (store / "two").write_bytes(b"x" * 2**20)
    assert doctor.state_of(store) == f"{store} (2 files, 1.5 MiB)"


def test_lines_of_a_command_are_stripped(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.write_text("#!/bin/sh\nprintf '| one |\\n\\n  two\\n'\nexit $1\n")
    told.chmod(0o755)
    assert doctor.first_lines(str(told), "0") == ("one", "two")
    assert doctor.first_lines(str(told), "1") == ()
    assert doctor.first_lines(str(tmp_path / "nobody")) == ()


def test_the_compiler_is_told_whatever_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "compiler", lambda: None)
    assert doctor._compiler() is None
    monkeypatch.setattr(doctor, "compiler", lambda: "/bin/c++")
    monkeypatch.setattr(
        doctor, "first_lines", lambda *command: ("c++ 12", "more") if command[1:] == ("--version",) else ()
    )
    assert doctor._compiler() == "/bin/c++: c++ 12"
    monkeypatch.setattr(doctor, "first_lines", lambda *command: ())
    assert doctor._compiler() == "/bin/c++: it does not tell its version"


@pytest.mark.parametrize(("version", "verified"), [("2.13.0+cpu", True), ("2.13.0", True), ("1.0+2.13.0", False)])
def test_what_torch_says_of_itself_is_kept(version: str, verified: bool, tmp_path: Path) -> None:
    said = {"version": version, "threads": 3, "capability": "AVX2", "cuda_build": "13.0", "cuda": ["a", "b"]}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho a warning\necho '{json.dumps(said)}'\n")
    python.chmod(0o755)
    assert doctor.ask_torch(str(python)) == Torch(
        version=version,
        verified=verified,
        threads=3,
        capability="AVX2",
        cuda_build="13.0",
        cuda_devices=("a", "b"),
    )


def test_a_target_of_torchair_is_usable_where_it_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import npucompose.targets

    asked: list[str] = []

    class Registry:
        def get(self, name: str) -> Any:
            asked.append(name)
            return lambda: self

        def check(self, mode: str) -> None:
            asked.append(mode)

    monkeypatch.setattr(npucompose.targets, "TARGETS", Registry())
    assert doctor._torchair("npu", "a device") == Usable(name="npu", usable=True, needs="a device")
    assert asked == ["npu", "max-autotune"]


def test_a_torch_that_ends_without_a_word_has_a_status(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho last >&2\nexit 4\n")
    python.chmod(0o755)
    assert doctor.ask_torch(str(python)) == Torch(error="last")
    python.write_text("#!/bin/sh\nexit 4\n")
    assert doctor.ask_torch(str(python)) == Torch(error="exit status 4")
    python.write_text("#!/bin/sh\n")
    assert doctor.ask_torch(str(python)) == Torch(error="torch answered: ")


def test_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"nvidia-smi": ("H200, 1 MiB",), "npu-smi": ("+---", "npu-smi 25.0", "npu-smi later")}
    monkeypatch.setattr(doctor, "first_lines", lambda *command: said.get(command[0], ()))
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", "")
    found = doctor.look_at_machine()
    assert (found.nvidia, found.npu, found.cann) == (("H200, 1 MiB",), "npu-smi 25.0", {"ASCEND_HOME_PATH": "/cann"})
    said.clear()
    assert (doctor.look_at_machine().npu, doctor.look_at_machine().nvidia) == (None, ())
    assert doctor.memory_gib() == found.memory_gib
    assert found.memory_gib is not None
    assert found.memory_gib > 0.1
    monkeypatch.setattr(doctor.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**20, "SC_PAGE_SIZE": 4096}[name])
    assert doctor.memory_gib() == 4.0
    monkeypatch.setattr(doctor.os, "sysconf_names", {})
    assert doctor.memory_gib() is None


# The front of Pareto.


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        ({"a": (1, 1, 1), "b": (1, 1, 1)}, "ab"),
        ({"a": (1, 2, 2), "b": (2, 1, 2), "c": (2, 2, 1)}, "abc"),
        ({"a": (1, 2, 2), "b": (2, 2, 2)}, "a"),
        ({"a": (1, 2, 3), "b": (2, 2, 2), "c": (3, 2, 3)}, "ab"),
        ({"a": (1, 5, 5), "b": (2, 4, 4), "c": (3, 4, 4), "d": (4, 3, 5), "e": (5, 4, 3)}, "abde"),
    ],
)
def test_the_front_is_what_none_beats(points: dict[str, pareto.Point], wanted: str) -> None:
    assert pareto.front(points) == frozenset(wanted)


def test_figures_are_compared_in_steps_of_five_percent() -> None:
    points = {"a": (1.0, 100.0, 2.0), "b": (1.04, 106.0, 2.5), "c": (2.0, 100.0, 2.0)}
    assert pareto.rounded(points) == {"a": (0.0, 0.0, 0.0), "b": (0.0, 1.0, 4.0), "c": (14.0, 0.0, 0.0)}
    assert pareto.rounded({"a": (1e-9, 0.5, 1e-7), "b": (1e-3, 1.0, 1e-3)}) == {"a": (0.0,) * 3, "b": (0.0,) * 3}
    assert pareto.rounded({}) == {}


def test_hostile_texts_stay_texts_in_every_form() -> None:
    line = compare.Line(name=HOSTILE, status="ok")
    assert "<script" not in render([Compared(line=line)], {"ok": 1}).replace("<script>", "", 1)
    assert compare.as_markdown([line]).count("\n") == 3
