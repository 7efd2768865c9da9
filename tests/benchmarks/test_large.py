"""What large inputs take: the page, the results and the rules hold together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.large import PAGE, RESULTS, ROWS, judged, measured, page


def test_every_row_is_measured_and_holds() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert [(row["name"], row["size"], row["rule"]) for row in rows] == [
        (row.name, row.size, row.rule) for row in ROWS.values()
    ]
    assert [row["name"] for row in rows if not row["holds"]] == []


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text())["rows"])


@pytest.mark.parametrize(
    ("seconds", "size", "holds"),
    [
        (10.0, 1 << 20, True),
        (12.9, 1 << 20, True),
        (30.0, 1 << 20, False),
        (100.0, 1 << 20, False),
        (10.0, 1 << 40, False),
    ],
)
def test_a_rule_that_is_broken_is_told(seconds: float, size: int, holds: bool) -> None:
    row = ROWS["nodes"]
    found = judged(row, {"seconds": 1.0, "bytes": 1 << 20}, {"seconds": seconds, "bytes": size})
    assert found["holds"] is holds


def test_a_row_is_measured_in_a_folder_that_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = measured(ROWS["nodes"], 200)
    assert found["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
