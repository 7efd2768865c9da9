"""The result file of many random programs: one line for each chunk, gone on with, never mixed with another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import fuzz_programs
from tools.fuzz_programs import begun, totals, write

DONE = [
    {"chunk": 1, "programs": 100, "different": 90, "right": 99, "as traced": 1, "failed": [], "sources": "0123"},
    {
        "chunk": 0, "programs": 7, "different": 7, "right": 6, "wrong": 1,
        "failed": [{"words": "w", "source": "s"}], "sources": "0123",
    },
]  # fmt: skip


def test_a_file_is_gone_on_with_and_its_chunks_stand_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "results.json"
    monkeypatch.setattr(fuzz_programs, "sources", lambda: "0123")
    results = begun(path, 14, afresh=False)
    results["chunks"] += DONE
    write(path, results)
    again = begun(path, 14, afresh=False)
    assert [entry["chunk"] for entry in again["chunks"]] == [0, 1]
    assert sum('"chunk": ' in line and '"failed"' in line for line in path.read_text().splitlines()) == 2
    assert totals(again["chunks"]) == {
        "programs": 107, "different": 97, "right": 105, "as traced": 1, "refused": 0, "wrong": 1,
    }  # fmt: skip


def test_a_chunk_that_failed_is_judged_again_with_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "results.json"
    results = begun(path, 14, afresh=False)
    results["chunks"] += DONE
    write(path, results)
    monkeypatch.setattr(fuzz_programs, "sources", lambda: "4567")
    assert [entry["chunk"] for entry in begun(path, 14, afresh=False)["chunks"]] == [1]


def test_another_seed_is_not_mixed_in(tmp_path: Path):
    path = tmp_path / "results.json"
    write(path, begun(path, 14, afresh=False))
    with pytest.raises(SystemExit, match=r"another seed: --afresh"):
        begun(path, 15, afresh=False)
    assert begun(path, 14, afresh=True)["chunks"] == []
