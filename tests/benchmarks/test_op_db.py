"""The table of torch's operators: files that are gone on with, processes that die, what the page says."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import op_db
from benchmarks.op_db import RESULTS, begun, judged, write
from benchmarks.op_db_page import PAGE, page

THROUGH = 560
OPEN: dict[str, str] = {}
"""Not yet explained; the page lists them as wrong."""
ENTRIES: list[dict[str, Any]] = [
    {"operator": "b", "kind": "wrapper", "most": 3, "words": "aten.b: a <reason> | of [its] own", "dtype": "float32",
     "samples": {"native": 1, "wrapper": 2}, "error": 0.5, "eager_error": None, "seconds": 1.0},
    {"operator": "a", "kind": "native", "most": 3, "dtype": "int64", "samples": {"native": 3}, "error": 0.0,
     "eager_error": 0.0, "seconds": 2.0},
]  # fmt: skip


def test_a_file_is_gone_on_with_and_its_operators_stand_in_order(tmp_path: Path):
    path = tmp_path / "op_db.json"
    results = begun(path)
    results["operators"] += ENTRIES
    write(path, results)
    again = begun(path)
    assert [entry["operator"] for entry in again["operators"]] == ["a", "b"]
    assert sum('"operator": ' in line for line in path.read_text().splitlines()) == 2


def test_another_torch_is_not_mixed_in(tmp_path: Path):
    path = tmp_path / "op_db.json"
    write(path, {"torch": "1.0", "all": 0, "operators": []})
    with pytest.raises(SystemExit, match=r"made with torch 1\.0"):
        begun(path)


def test_a_process_that_dies_or_takes_too_long_is_a_verdict(monkeypatch: pytest.MonkeyPatch):
    ends = {
        "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leaves": lambda: os._exit(3),
        "sleeps": lambda: time.sleep(60),
        "answers": lambda: {"operator": "answers", "kind": "native"},
    }
    monkeypatch.setattr(op_db, "found_of", lambda name, most: ends[name]())
    found = {name: judged(name, 1, seconds=0.3 if name == "sleeps" else 30) for name in ends}
    assert {name: (entry["kind"], entry.get("words")) for name, entry in found.items()} == {
        "dies": ("crashed", "signal SIGKILL"),
        "leaves": ("crashed", "exit status 3"),
        "sleeps": ("out of time", "more than 0.3 s"),
        "answers": ("native", None),
    }


def test_the_page_counts_kinds_and_names_every_operator_that_is_not_replayed():
    text = page({"torch": "2.13.0", "all": 2, "operators": ENTRIES})
    assert "2 of 3 operators so far, 6" in page({"torch": "2.13.0", "all": 3, "operators": ENTRIES})
    assert "2 operators, 6 samples; natively or by the wrapper: 2." in text
    assert "| wrapper | 1 |" in text
    assert "| wrong | 0 |" in text
    assert "| `b` | float32 | aten.b: a &lt;reason> \\| of \\[its] own |" in text
    assert "`a`" not in text


def test_the_page_that_is_stored_is_made_from_the_results_that_are_stored():
    stored = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(stored)


def test_enough_operators_go_through_none_but_the_open_ones_is_wrong_and_the_others_have_their_reason():
    stored = json.loads(RESULTS.read_text())
    kinds = [entry["kind"] for entry in stored["operators"]]
    share = len(kinds) / stored["all"]
    assert sum(kind in ("native", "wrapper") for kind in kinds) >= THROUGH * share
    assert {entry["operator"] for entry in stored["operators"] if entry["kind"] in op_db.FAILED} == set(OPEN)
    assert all(entry.get("words") for entry in stored["operators"] if entry["kind"] != "native")
