"""The benchmark table: who takes part, what a cell says where there is no figure, and when a goal is met."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def measured(us: float, share: float, **more: Any) -> dict[str, Any]:
    return {
        "p50_us": us, "p25_us": us, "p75_us": us * 2, "as_fast_as_eager": share, "bitwise": True, "max_abs_err": 0.0,
        "made_s": 1.0, "held_bytes": 1 << 20, "pool_bytes": None, "calls": 10, **more,
    }  # fmt: skip


def result(**candidates: dict[str, Any]) -> dict[str, Any]:
    names = {"detached": "npucompose, detached", "aoti": "AOTInductor", "vino": "OpenVINO"}
    return {
        "model": "gpt_decode",
        "threads": 1,
        "floor_us": 90.0,
        "date": "2026-11-21",
        "environment": {"cpu": "a processor", "cores": 2, "threads": 1, "versions": {"torch": "2.13.0"}},
        "candidates": {names.get(name, name): row for name, row in candidates.items()},
    }


def test_every_candidate_that_was_asked_for_takes_part() -> None:
    from candidates import CANDIDATES

    assert len(CANDIDATES) == 13
    assert next(iter(CANDIDATES)) == "eager"


@pytest.mark.parametrize(("share", "met"), [(1.9, True), (2.2, False)])
def test_a_goal_is_a_ratio_of_ratios(share: float, met: bool) -> None:
    from performance_page import goals

    found = result(eager=measured(1000, 1.0), detached=measured(500, 2.0), aoti=measured(1000 / share, share))
    (goal,) = [goal for goal in goals([found]) if goal.words.startswith("gpt_decode")]
    assert (goal.figure, goal.met) == (f"{share / 2:.2f}", met)
    assert [goal.met for goal in goals([])] == [None] * 6


def test_the_page_shows_a_reason_where_there_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import performance_page

    monkeypatch.setattr(performance_page, "PAGE", tmp_path / "page.md")
    row = measured(1500, 2.0, bitwise=False, max_abs_err=1e-6, pool_bytes=2048)
    found = result(eager=measured(3000, 1.0), detached=row, vino={"why_not": "not installed | extra"})
    performance_page.write([found], ["gpt_decode"])
    text = (tmp_path / "page.md").read_text()
    assert "| OpenVINO | not installed / extra | | | | | |" in text
    assert "- gpt_decode, OpenVINO: not installed / extra" in text
    assert "| npucompose, detached | 1.50 ms | 1.50 ms – 3.00 ms | 2.00 | off by 1.0e-06 | 1.0 s |" in text
    assert "pool 2 KiB" in text
    assert "kernel floor 90.0 µs" in text


def test_wrong_results_are_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import performance
    from candidates import Ready, Subject, Unavailable

    module = torch.nn.Identity()
    inputs = [(torch.ones(2),), (torch.zeros(2),)]
    subject = Subject(module=module, inputs=inputs[0], threads=1)
    expected = [module(*x) for x in inputs]

    def row(make: Any) -> dict[str, Any]:
        found, made = performance._made(make, subject, expected, inputs)
        assert (made is None) == ("why_not" in found)
        return found

    assert row(lambda _: Ready(call=module))["bitwise"]
    assert "other results than eager's" in row(lambda _: Ready(call=lambda x: x + 1))["why_not"]

    def refuses(_: Any) -> Any:
        raise Unavailable("no such thing here")

    assert row(refuses)["why_not"] == "no such thing here"
    assert row(lambda _: 1 / 0)["why_not"] == "ZeroDivisionError: division by zero"


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import candidates

    with pytest.raises(candidates.Unavailable, match=r"not installed: no_such_library \(extra: bench\)"):
        candidates._needs("sys", "no_such_library")
    assert "no_such_library" not in sys.modules
