"""Results that are committed: one value, a line for each row of it, and no sample of a single call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compact import WIDTH, compact

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert json.loads(compact(value)) == value


def test_what_fits_is_a_line_and_what_does_not_has_a_line_for_each_item() -> None:
    row = {"model": "add", "figure": 0.5}
    assert compact([row]) == '[{"model": "add", "figure": 0.5}]'
    many = [{**row, "note": "x" * 60}] * 8
    assert len(json.dumps(many)) > WIDTH
    assert compact(many).splitlines()[1:3] == [f" {json.dumps(many[0])},"] * 2
    assert len(compact({"rows": many}).splitlines()) == len(many) + 4


def test_a_result_takes_the_place_of_the_one_of_the_same_model_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from performance import keep, without_samples

    measured = {"model": "add", "threads": 1, "candidates": {"eager": {"p50_us": 1.5, "samples_us": [1.5]}}}
    wanted = {"model": "add", "threads": 1, "candidates": {"eager": {"p50_us": 1.5}}}
    assert without_samples(measured) == wanted
    file = tmp_path / "machine.json"
    for result in ({**wanted, "threads": 2}, {**wanted, "candidates": {}}, wanted):
        keep(file, result)
    assert json.loads(file.read_text()) == [wanted, {**wanted, "threads": 2}]
