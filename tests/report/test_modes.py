"""Which mode won: the sentence for each way that a contest can end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import evolve
from report_examples import CONTEST, CONTESTED, timing

from npucompose.report import html
from npucompose.report import json as report_json
from npucompose.report.words import modes_sentence
from npucompose.results.measured import Behind, ModeFacts, ModeTime, TimeSamples
from tests.report.test_terminal import shown


def rounds(count: int, microseconds: float) -> TimeSamples:
    return evolve(timing(microseconds), samples_us=(microseconds,) * count)


def test_the_winner_is_named_with_every_ratio_and_its_spread() -> None:
    assert modes_sentence(CONTEST) == (
        "max-autotune won: 1.21x as fast as reduce-overhead (quartiles 1.18x to 1.25x), "
        "1.90x as fast as eager (quartiles 1.80x to 2.00x)"
    )


def test_a_lead_within_the_spread_is_no_win_and_names_who_is_even() -> None:
    near = tuple(
        evolve(one, behind=Behind(ratio=1.02, low=0.97, high=1.08)) if one.mode == "reduce-overhead" else one
        for one in CONTEST.modes
    )
    words = "nobody won: max-autotune and reduce-overhead are even within the spread (1.02x, quartiles 0.97x to 1.08x)"
    assert modes_sentence(evolve(CONTEST, won=False, modes=near)) == words


def test_too_few_rounds_are_told() -> None:
    assert modes_sentence(evolve(CONTEST, won=False)) == (
        "nobody is said to have won: 24 rounds are too few; max-autotune was ahead"
    )


def test_a_contest_without_a_second_is_none() -> None:
    only = ModeFacts(fastest="eager", won=False, modes=(ModeTime(mode="eager", passed=True, timing=rounds(24, 9.0)),))
    assert "no two modes" in modes_sentence(only)


def test_a_mode_that_won_is_none_beside_wrong_results() -> None:
    assert CONTESTED.numerics is not None
    wrong = evolve(CONTESTED, numerics=evolve(CONTESTED.numerics, passed=False))
    assert "max-autotune won" in html.render(CONTESTED)
    assert " won" not in shown(wrong, 200)
    assert " won" not in html.render(wrong)


def test_the_summary_has_a_line_for_each_mode(golden: Callable[[str, str], None]) -> None:
    golden("report/contested.txt", shown(CONTESTED))


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    assert report_json.load(report_json.write(CONTESTED, tmp_path)) == CONTESTED
