"""What a run prints: six lines, nothing that does not apply, nothing twice, and a next command that can be typed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from report_examples import CRASHED, EXAMPLES, FULL, JUDGED, MISTRACED, WRONG
from rich.console import Console

from npucompose.cli import main
from npucompose.npu.torchair.records import NpuFacts
from npucompose.report.terminal import RunCommand, attention, next_command, render_summary, stream_line
from npucompose.report.terminal import render as whole
from npucompose.results.effective import Effective
from npucompose.results.record import Report
from npucompose.results.streams import StreamFacts, TrialVerdict

ASKED = RunCommand(folder=Path("outputs/10-00-00"), program="run.py", overrides=("model=mlp", "model.label=a b"))
QUIET = evolve(FULL, effective=())


def shown(report: Report, width: int = 80, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    render_summary(report, console, ASKED)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("name", [*EXAMPLES, *JUDGED])
def test_the_lines_read_as_the_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"report/summary/{name}.txt", shown({**EXAMPLES, **JUDGED}[name]))


@pytest.mark.parametrize(
    ("captures", "head"),
    [
        (0, "not compiled · gpt_decode · npu_offline · eager instead of reduce-overhead · static · "),
        (2, "partly compiled · gpt_decode · npu_offline · reduce-overhead, then eager · static · "),
    ],
)
def test_the_head_line_of_a_run_that_ran_eagerly_says_so_and_the_reason_comes_first(captures: int, head: str) -> None:
    npu = NpuFacts(package="torchair", version="2.13.0", platform="simulated", fx_graphs=1, captures=captures)
    why = [Effective(option=f"compiler.{n}", requested=1, effective=None, why="") for n in range(3)]
    mode = Effective(option="mode.name", requested="reduce-overhead", effective="eager", why="nothing is captured")
    experiment = {**FULL.experiment, "target": {"name": "npu_offline"}}
    ran = evolve(FULL, status="uncompiled", compiled=False, npu=npu, effective=(*why, mode), experiment=experiment)
    lines = shown(ran, 400).splitlines()
    assert lines[0].removeprefix("result    ").startswith(head)
    assert [*attention(ran)][-2:] == [
        "nothing is captured",
        "3 options have no effect here: compiler.0, compiler.1 and 1 more",
    ]
    assert next_command(ran, ASKED) == "npucompose report --full outputs/10-00-00"


def test_a_run_that_holds_is_six_lines() -> None:
    labels = [line.split("  ")[0] for line in shown(QUIET).splitlines()]
    assert labels == ["result", "speed-up", "streams", "memory", "report", "next"]


def test_a_terminal_breaks_lines_at_its_width_but_never_what_is_copied() -> None:
    lines = shown(FULL, 60, terminal=True).splitlines()
    assert max(len(line) for line in lines if "outputs/" not in line) <= 60
    assert f"next      npucompose report --full {ASKED.folder}" in lines
    assert len(lines) > len(shown(FULL, 60).splitlines())


def test_there_is_one_figure_of_speed_and_how_it_was_taken() -> None:
    text = shown(FULL)
    assert text.count("over eager") == 1
    assert "1.91x over eager: median ratio of 2 pairs of calls made in turn, replay without guards" in text
    for figure in ("p90", "p99", "0.57x", "990.1", "517.0"):
        assert figure not in text


@pytest.mark.parametrize("report", [WRONG, MISTRACED])
def test_no_speed_stands_beside_wrong_results(report: Report) -> None:
    assert "over eager" not in shown(report)
    assert "speed-up  not shown: " in shown(report)


def test_what_the_mode_does_not_build_is_not_reported() -> None:
    sinking = EXAMPLES["inductor"].sinking
    captured = evolve(FULL, sinking=sinking)
    built = evolve(captured, experiment={**FULL.experiment, "mode": {"name": "max-autotune"}})
    for render_one in (shown, _account):
        assert "GE build" not in render_one(captured)
        assert "GE build" in render_one(built)


def _account(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    whole(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_error_of_a_run_is_not_said_a_second_time() -> None:
    assert CRASHED.error is not None
    assert CRASHED.error not in shown(CRASHED)
    assert f"log       {ASKED.folder / 'run.log'}" in shown(CRASHED)


TRIED = TrialVerdict(applied=True, turns=20, plan_us=200.0, one_stream_us=300.0)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            StreamFacts(streams=2, events=1, trials=(TRIED,), predicted_us=100.0, serial_us=180.0),
            "applied (2 streams, 1 event): 1.50x over one stream, 200.0 µs against 300.0 µs; predicted 1.80x",
        ),
        (
            StreamFacts(streams=1, events=0, applied=False, trials=(evolve(TRIED, plan_us=400.0),)),
            "not applied: 0.75x over one stream, 400.0 µs against 300.0 µs",
        ),
        (StreamFacts(streams=1, events=0, applied=False, why="nothing to gain"), "not applied: nothing to gain"),
        (
            StreamFacts(streams=2, events=1, predicted_us=100.0, serial_us=180.0),
            "applied (2 streams, 1 event): predicted 1.80x over one stream, not measured",
        ),
        (StreamFacts(streams=2, events=3), "applied (2 streams, 3 events)"),
    ],
)
def test_what_the_plan_gained_is_predicted_measured_and_against_one_stream(plan: StreamFacts, words: str) -> None:
    assert stream_line(plan) == words


@pytest.mark.parametrize(
    ("report", "command"),
    [
        (FULL, "npucompose report --full outputs/10-00-00"),
        (evolve(FULL, streams=None, passes=()), "python run.py model=mlp 'model.label=a b' passes=stream_plan"),
        (evolve(FULL, streams=None, passes=(), reused=True), "npucompose report --full outputs/10-00-00"),
        (EXAMPLES["disappointing"], "npucompose report --full outputs/10-00-00"),
        (CRASHED, "python run.py model=mlp 'model.label=a b' debug=true"),
        (MISTRACED, "npucompose report --full outputs/10-00-00"),
        (EXAMPLES["inductor"], "npucompose explain model=mlp 'model.label=a b'"),
    ],
)
def test_the_next_command_fits_what_happened(report: Report, command: str) -> None:
    assert next_command(report, ASKED) == command


def test_a_pass_that_is_to_blame_is_looked_for() -> None:
    assert WRONG.numerics is not None
    blamed = evolve(WRONG, numerics=evolve(WRONG.numerics, cause="passes"))
    assert next_command(blamed, ASKED) == "npucompose bisect model=mlp 'model.label=a b'"


def test_what_needs_attention_is_said_though_nothing_failed() -> None:
    assert list(attention(QUIET)) == []
    assert next(attention(FULL)).startswith("6 options have no effect here: ")
    assert [
        words.partition(" has no effect: ")[0] for words in attention(evolve(FULL, effective=FULL.effective[:2]))
    ] == [one.option for one in FULL.effective[:2]]
    first, second, *_ = (one.option for one in FULL.effective)
    three = next(attention(evolve(FULL, effective=FULL.effective[:3])))
    assert three == f"3 options have no effect here: {first}, {second} and 1 more"
    assert next(attention(EXAMPLES["inductor"])).startswith("1 recompilation: tensor 'x' size mismatch")


def test_the_whole_account_is_one_command_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.report import json as report_json

    for name, report in (("one", FULL), ("two", WRONG)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        report_json.write(report, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--full", "runs"]) == 0
    text = capsys.readouterr().out
    assert text.count("stages    ") == 2
    assert "p99" in text
    assert "report: runs/one/report.json" in text


def test_a_table_in_a_pipe_is_not_broken_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.report import json as report_json

    place = tmp_path / ("a_folder_with_a_long_name_" * 4)
    place.mkdir()
    report_json.write(FULL, place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["report", "."]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if place.name in line]
    assert len(rows) == 1
    assert "517.0" in rows[0]
