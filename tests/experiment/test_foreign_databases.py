"""Databases that another wrote: no file of mine is deleted, nothing hangs, nothing runs, and Ctrl-C ends a question."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_free import sqlite_files
from airflow_free.errors import OrchestratorError
from airflow_free.ledger import FILE_NAME
from npucompose.cli import main
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from tests.strangers.folders import MORE, TABLES, _with_table, journal, ledger

ANOTHER = 65534


def test_a_journal_deletes_no_file_of_mine(tmp_path: Path) -> None:
    """Negative control: SQLite itself deletes it."""
    for name, opened in (("bare", False), ("ours", True)):
        folder, mine = tmp_path / name, tmp_path / f"{name}.mine"
        folder.mkdir()
        mine.write_text("mine")
        (folder / FILE_NAME).write_bytes(ledger())
        (folder / f"{FILE_NAME}-journal").write_bytes(journal(str(mine)))
        if opened:
            with pytest.raises(OrchestratorError, match="names a file that SQLite would delete"):
                PointLedger.open(folder)
            with PointLedger.read(folder) as there:
                assert len(there.entries()) == 1
        else:
            connection = sqlite3.connect(folder / FILE_NAME)
            connection.execute("SELECT * FROM points").fetchall()
            connection.close()
        assert mine.exists() == opened, name


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_a_table_that_is_more_than_columns_is_refused_before_a_row_is_read(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE_NAME).write_bytes(_with_table(TABLES[number]))
    assert main(["report", str(tmp_path)]) == 2
    assert "cannot be used: it" in capsys.readouterr().err


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])  # the others SQLite refuses, or has not in every build
def test_what_else_a_database_holds_is_refused(number: int, tmp_path: Path) -> None:
    content = ledger(MORE[number])
    (tmp_path / FILE_NAME).write_bytes(content)
    for open_it in (PointLedger.read, PointLedger.open):
        with pytest.raises(OrchestratorError, match="which no program of ours makes"):
            open_it(tmp_path)


ENDLESS = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x"


def test_a_question_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "BUDGET_S", 0.05)
    with PointLedger.open(tmp_path) as there:
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            there.connection.execute(ENDLESS).fetchall()
        there.write([PointEntry(key="a" * 64, status="ok", overrides=())])
        assert len(there.entries()) == 1, "each question has its own budget"


def test_ctrl_c_ends_a_question(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from pathlib import Path; from airflow_free import sqlite_files\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from airflow_free.ledger import usable\n"
        "sqlite_files.BUDGET_S = 1000.0\n"
        f"c = sqlite_files.connect(Path('x.sqlite'), 1); print('here', flush=True)\n"
        f"try:\n with usable(Path('x'), c): c.execute({ENDLESS!r}).fetchall()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdout is not None
        assert asked.stdout.readline() == "here\n"
        time.sleep(0.3)
        asked.send_signal(signal.SIGINT)
        assert asked.stdout.read() == "interrupted\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_ledger_of_another_user_is_read_and_not_written(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as there:
        there.write([PointEntry(key="a" * 64, status="ok", overrides=())])
    os.chown(tmp_path / FILE_NAME, ANOTHER, -1)
    with pytest.raises(OrchestratorError, match=f"belongs to another user .number {ANOTHER}"):
        PointLedger.open(tmp_path)
    with PointLedger.read(tmp_path) as there:
        assert len(there.entries()) == 1


def test_a_copy_goes_when_it_is_closed_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(sqlite_files.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / FILE_NAME).write_bytes(ledger())
    with PointLedger.read(tmp_path):
        assert len(list((tmp_path / "tmp").iterdir())) == 1
    (tmp_path / FILE_NAME).write_bytes(ledger(MORE[5]))
    with pytest.raises(OrchestratorError):
        PointLedger.read(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []
