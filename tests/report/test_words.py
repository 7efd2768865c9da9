"""Numbers and facts in words; what would be adapted; who set what; the front of Pareto."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hostile import HOSTILE
from report_examples import FULL, JUDGED
from whole_examples import (
    FACTS,
    RICH,
    WEIGHED,
    plain,
)

from npucompose.errors import ConfigError
from npucompose.npu.static_graph import explanation
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.report import (
    compare,
    explain,
    terminal,
)
from npucompose.report.comparison import ComparedRun, render
from npucompose.report.plan_words import plan_words, trial_words
from npucompose.report.words import (
    as_count,
    as_time,
    contract_words,
    log_words,
    numerics_notes,
    part_words,
    ran_as,
    status_words,
    why_untimed,
)
from npucompose.results.effective import Setting
from npucompose.results.graphs import Adaptation, DryRun
from npucompose.results.measured import CallStatistics, Numerics
from npucompose.results.streams import StreamFacts
from npucompose.results.streams import TrialVerdict as Weighed
from npucompose.schema.sizes import as_bytes


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
        plain(lambda made: explain.render_dry_run(run, made)),
        plain(lambda made: explain.render_dry_run(DryRun(asked={"model": "x"}, graphs=1), made)),
        explain.as_json(run),
        plain(lambda made: explanation.render(explained, made)),
        plain(lambda made: explanation.render(stored, made)),
        plain(lambda made: explanation.render(stored, made), 44),
        plain(lambda made: explain.render_dry_run(run, made), 20),
        plain(lambda made: terminal.render(RICH, made, "/a long path of a folder/report.json"), 50),
        explain.as_json(stored),
    ]
    golden("report/explained.txt", "\n\n".join(parts) + "\n")
    assert all(line.plain for line in explain.dry_run_lines(run))
    assert [str(line.style) for line in explain.dry_run_lines(run)] == [
        *("bold", "cyan", "red", "green", "green", "cyan", "red", "bold red", "dim", "yellow", "bold"),
    ]


def test_who_set_what_reads_like_this(golden: Any) -> None:
    given = [
        Setting(option="mode.name", value="eager", said_by="conf/mode/eager.yaml, chosen on the command line"),
        Setting(option="model.x", value=["ä"], said_by="mine.yaml"),
        Setting(option="seed", value=3, said_by="command line"),
        Setting(option="compiler.a", value=True, said_by="default"),
        Setting(option="compiler.b", value=1, said_by="conf/compiler/default.yaml", why_not="takes effect in GE only"),
        Setting(option="compiler.c", value=2, said_by="conf/compiler/default.yaml"),
        Setting(option="strict", value="on", said_by="default"),
    ]
    shown = [plain(lambda made: explain.render_settings(given, made))]
    shown.append(plain(lambda made: explain.render_settings(given, made, under="compiler")))
    shown.append(plain(lambda made: explain.render_settings(given, made), 12))
    shown += [explain.settings_json(given, under="mode"), explain.settings_json(given)]
    golden("report/settings.txt", "\n\n".join(shown) + "\n")
    assert [one.option for one in explain.below(given, "compiler.a")] == ["compiler.a"]
    with pytest.raises(ConfigError, match="unknown option 'comp' @ --under"):
        explain.below(given, "comp")


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
def test_the_front_is_what_none_beats(points: dict[str, compare.Point], wanted: str) -> None:
    assert compare.front(points) == frozenset(wanted)


def test_figures_are_compared_in_steps_of_five_percent() -> None:
    points = {"a": (1.0, 100.0, 2.0), "b": (1.04, 106.0, 2.5), "c": (2.0, 100.0, 2.0)}
    assert compare.rounded(points) == {"a": (0.0, 0.0, 0.0), "b": (0.0, 1.0, 4.0), "c": (14.0, 0.0, 0.0)}
    assert compare.rounded({"a": (1e-9, 0.5, 1e-7), "b": (1e-3, 1.0, 1e-3)}) == {"a": (0.0,) * 3, "b": (0.0,) * 3}
    assert compare.rounded({}) == {}


def test_hostile_texts_stay_texts_in_every_form() -> None:
    line = compare.RunLine(name=HOSTILE, status="ok")
    assert "<script" not in render([ComparedRun(line=line)], {"ok": 1}).replace("<script>", "", 1)
    assert compare.as_markdown([line]).count("\n") == 3
