from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from attrs import evolve
from report_examples import CRASHED, CUT_RUN, EXAMPLES, FULL, JUDGED, MISTRACED, REPEATED_RUN, UNSTEADY, WRONG
from rich.console import Console

from npucompose.report import html
from npucompose.report.terminal import render
from npucompose.results.measured import CallStatistics, MemoryFacts
from npucompose.results.record import STATUSES, CallFacts, CaptureFacts, Report, SequenceFacts


def shown(report: Report, width: int = 80, path: str | None = "outputs/2026-11-20/10-00-00/report.json") -> str:
    console = Console(file=io.StringIO(), width=width)
    render(report, console, path)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("name", [*EXAMPLES, *JUDGED])
def test_the_summary_reads_as_the_golden_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"report/{name}.txt", shown({**EXAMPLES, **JUDGED}[name]))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_none_is_coloured(name: str, width: int) -> None:
    text = shown(EXAMPLES[name], width, path=None)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_a_path_is_never_broken_so_that_it_can_be_copied() -> None:
    path = "outputs/" + "long/" * 30 + "report.json"
    assert path in shown(FULL, path=path)


def test_wrong_results_have_no_speed() -> None:
    text = shown(WRONG)
    assert "as fast" not in text
    assert "517" not in text
    assert "latency    not shown" in text
    assert "does not equal eager" in text


def test_only_results_that_are_not_those_of_their_graph_are_called_wrong() -> None:
    assert "wrong results" in shown(WRONG).splitlines()[0]
    for other in (MISTRACED, UNSTEADY):
        assert "wrong" not in shown(other)
        assert "as fast" not in shown(other)
        assert "wrong results" not in html.render(other)
        assert "results are wrong" not in html.render(other)
    assert "replay exact; passes changed 1e-06; tracing changed 0.25" in html.render(MISTRACED)


def test_wrong_results_have_no_speed_whatever_the_status_says() -> None:
    assert "as fast" not in shown(evolve(WRONG, status="ok"))


def test_words_of_a_log_are_not_read_as_markup() -> None:
    assert "benchmark: [started]" in shown(CRASHED)


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_is_shown(status: str) -> None:
    first = shown(evolve(FULL, status=status)).splitlines()[0]
    assert first.rsplit("  ", 1)[1].strip()


def test_memory_that_recordings_share_is_told_where_it_is_less_than_what_they_take_apart() -> None:
    def told(shared: int | None) -> str:
        memory = MemoryFacts(pool_bytes=4096, shared_pool_bytes=shared, unplanned_bytes=8192, live_bytes=3072)
        return shown(evolve(FULL, memory=memory), width=120)

    assert "pool 1.0 KiB that all recordings share (4.0 KiB apart, 8.0 KiB without reuse)" in told(1024)
    assert "pool 4.0 KiB (8.0 KiB without reuse, 3.0 KiB live at most)" in told(4096)
    assert "share" not in told(4096)
    assert "share" not in told(None)


def test_the_memory_of_a_device_stands_beside_the_process() -> None:
    device = MemoryFacts(device_peak_bytes=2 << 20, device_reserved_peak_bytes=4 << 20, device_total_bytes=1 << 36)
    report = evolve(FULL, memory=device)
    assert "device peak 2.0 MiB (4.0 MiB reserved, 64.0 GiB there)" in shown(report, width=120)
    assert "device peak" in html.render(report)
    assert "device peak" not in shown(FULL, width=120) + html.render(FULL)


def test_a_comparison_that_ended_early_has_a_line_that_says_where_and_why() -> None:
    ended = "at step 1 of 3: captured for (int 3), got (int 4)"
    assert "ended at step" not in shown(FULL, width=200) + html.render(FULL)
    assert FULL.stages.replay is not None
    report = evolve(FULL, stages=evolve(FULL.stages, replay=evolve(FULL.stages.replay, detached_ended=ended)))
    for text in (shown(report, width=200), html.render(report)):
        assert f"the comparison of the detached handle ended {ended}" in text


def test_declared_calls_without_a_recording_or_in_anothers_place_have_a_line() -> None:
    def told(**ran: int) -> str:
        calls = (CallFacts(call="x.0: 6", recompiles=0, passed=True, max_abs_err=0.0),)
        made = SequenceFacts(calls=calls, graphs=1, captures=2, ran=CallStatistics(**ran))
        report = evolve(FULL, stages=evolve(FULL.stages, sequence=made))
        return shown(report, width=120) + html.render(report)

    assert "without a recording" not in told(hits=3, captures=2)
    expected = "3 replayed · 2 recorded, 1 of them in another's place · 4 without a recording"
    assert told(hits=3, captures=2, replacements=1, eager=4).replace("&#39;", "'").count(expected) == 2


def test_another_replayer_than_was_asked_for_is_told_whether_or_not_anything_is_timed() -> None:
    capture = CaptureFacts(seconds=0.1, captures=1, kernels=3, executor="torchscript", why_executor="no C++ compiler")
    for stages in (FULL.stages, evolve(FULL.stages, benchmark=None)):
        assert "torchscript replays: no C++ compiler" in shown(evolve(FULL, stages=evolve(stages, capture=capture)))


def test_a_cut_graph_names_what_stands_outside_of_recordings() -> None:
    words = "3 segments, 2 operators outside recordings: cond at model.py:41, aten.nonzero at model.py:50"
    assert words in shown(CUT_RUN, width=200)
    assert "segment" not in shown(FULL, width=200)


def test_a_graph_whose_runs_overwrite_one_another_names_the_option_that_copies() -> None:
    told = shown(REPEATED_RUN, width=200)
    assert "0 runs 3 times in one call of the model" in told
    assert "compiler.npugraph_ex.clone_output=true makes copies" in told
    assert "runs 3 times" not in shown(FULL, width=200)
