"""A ledger that somebody else wrote: every row is read, or refused in one sentence that says which one and why."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_free.errors import OrchestratorError
from airflow_free.ledger import FILE_NAME, Trial
from npucompose.cli import main
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.results.record import Figures
from tests.searches import examples

POINT = PointEntry(
    key="a" * 64, status="ok", overrides=("seed=1",), figures=Figures(model="add", p50_us=2.0, pool_bytes=64)
)
TRIAL = Trial(study="s", number=0, key="a" * 64, state="complete", params={"seed": 1}, values=(2.0,))


def ledger_with(folder: Path, table: str = "points", **cells: object) -> Path:
    """A ledger with one point and one trial, some cells of which were written by another hand."""
    folder.mkdir(parents=True, exist_ok=True)
    with PointLedger.open(folder) as ledger:
        ledger.write([POINT])
        ledger.write_trial(TRIAL)
        for column, value in cells.items():
            ledger.connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    return folder


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"p50_us": "fast"}, "the point 'aaa.*': 'p50_us' must be a number or null: 'fast' @ figures"),
        ({"pool_bytes": 0.5}, "'pool_bytes' must be an integer or null: 0.5 @ figures"),
        ({"status": "fine"}, "'status' must be one of ok, .*: 'fine'"),
        ({"overrides": "seed=1"}, "'overrides' must be a list: 'seed=1'"),
        ({"overrides": "[1]"}, r"'overrides\[0\]' must be text: 1"),
        ({"overrides": None}, "'overrides' must be a list: null"),
        ({"run_dir": b"\x00"}, "'run_dir' must be text or null"),
        ({"seconds": None, "ended": 3}, "'seconds' must be a number: null; 'ended' must be text: 3"),
    ],
)
def test_a_wrong_row_is_one_sentence_with_the_file_the_point_and_every_wrong_value(
    cells: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ledger_with(tmp_path, **cells)
    with (
        PointLedger.open(folder) as ledger,
        pytest.raises(OrchestratorError, match=f"{FILE_NAME} cannot be used: .*{said}"),
    ):
        ledger.ends([POINT.key])
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "the point" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("column", ["p50_us", "overrides"])
def test_the_figures_of_a_whole_ledger_are_refused_too(column: str, tmp_path: Path) -> None:
    folder, said = ledger_with(tmp_path, **{column: b"\xff"}), f"the point 'aaa.*'{column}' must be"
    with PointLedger.open(folder) as ledger, pytest.raises(OrchestratorError, match=said):
        list(ledger.timed(["ok"]))


def test_a_status_that_there_is_not_is_not_counted(tmp_path: Path) -> None:
    folder, said = ledger_with(tmp_path, status=b"\xff"), r"the point 'aaa.*'status' must be one of"
    with (
        PointLedger.open(folder) as ledger,
        pytest.raises(OrchestratorError, match=said),
    ):
        ledger.counts()


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"state": "done"}, "trial 0 of the study 's': 'state' must be one of complete, pruned, failed: 'done'"),
        ({"params": "[1]"}, "'params' must be a mapping"),
        ({"params": "{"}, "'params' must be a mapping"),
        ({"objectives": '["fast"]'}, "'values"),
        ({"number": "one"}, "trial 'one' of the study 's': 'number' must be an integer: 'one'"),
    ],
)
def test_a_wrong_trial_is_one_sentence(cells: dict[str, object], said: str, tmp_path: Path) -> None:
    with (
        PointLedger.open(ledger_with(tmp_path, "trials", **cells)) as ledger,
        pytest.raises(OrchestratorError, match=said),
    ):
        ledger.trials("s")


def test_a_table_with_other_columns_is_one_sentence(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE points (key PRIMARY KEY, status)")
        connection.execute("PRAGMA user_version=1")
    for open_it in (PointLedger.open, PointLedger.read):
        with pytest.raises(OrchestratorError, match="cannot be used: it holds the table 'points', which no program"):
            open_it(tmp_path)


def test_a_schema_that_is_no_text_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ledger_with(tmp_path) / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE points", b"CREATE TABLE \xea\xf5ints"))
    assert main(["report", str(tmp_path)]) == 2
    assert "cannot be used: " in capsys.readouterr().err


def test_a_ledger_that_is_looked_at_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ledger_with(tmp_path / "theirs")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / FILE_NAME).touch()
    for place, status in ((folder, 0), (tmp_path / "empty", 2)):
        before = {path.name: path.read_bytes() for path in place.iterdir()}
        assert main(["report", str(place)]) == status
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert "cannot be used: it has schema 0" in capsys.readouterr().err


def test_a_ledger_that_is_being_written_shows_its_latest_rows(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as writer:
        writer.write([POINT])
        with PointLedger.read(tmp_path) as reader:
            assert reader.entries() == [POINT]


def test_columns_that_a_stranger_added_are_not_read(tmp_path: Path) -> None:
    with PointLedger.open(ledger_with(tmp_path)) as ledger:
        ledger.connection.execute("ALTER TABLE points ADD COLUMN remark")
        assert ledger.entries() == [POINT]
        assert ledger.trials("s") == [TRIAL]


CELLS = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=9), st.binary(max_size=4),
    st.recursive(st.one_of(st.none(), st.integers(), st.text(max_size=3)), st.lists, max_leaves=4).map(json.dumps),
    st.sampled_from(["ok", "failed", "../..", "\x1b[2J", "<b>", "[" * 100_000]),
)  # fmt: skip
NUMBERS = itertools.count()


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.dictionaries(st.sampled_from(PointLedger.columns()), CELLS, min_size=1, max_size=4))
def test_no_row_of_a_stranger_ends_in_a_traceback(
    cells: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if cells.get("key", "") is None:
        del cells["key"]  # SQLite itself refuses that
    folder = ledger_with(tmp_path / str(next(NUMBERS)), **cells)
    status = main(["report", str(folder)])
    told = capsys.readouterr()
    assert status in (0, 2), told
    assert (told.err.count("npucompose:") > 0) == (status == 2)
    assert "\x1b" not in told.out + told.err
