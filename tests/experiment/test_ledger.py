"""What the ledger keeps, and what it says of a file that is no ledger."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.ledger import FILE_NAME
from airflow_free.sqlite_files import Connection
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.results.record import Figures


def entry(number: int, **changes: object) -> PointEntry:
    values: dict[str, object] = {
        "key": f"{number:064x}",
        "status": "ok",
        "overrides": (f"seed={number}", "passes=[a,b]"),
        "run_dir": f"multirun/{number}",
        "figures": Figures(model="add", p50_us=float(100 - number), pool_bytes=64),
    }
    return PointEntry(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = [entry(1), entry(2, status="crashed", error="it died", exit_signal="SIGKILL", figures=Figures())]
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(written)
    with PointLedger.open(tmp_path) as ledger:
        assert ledger.ends([e.key for e in written]) == {e.key: e for e in written}
        assert ledger.ends(["0" * 64]) == {}
        assert ledger.counts() == {"crashed": 1, "ok": 1}


def test_a_later_end_of_the_same_point_replaces_the_earlier(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1, status="timeout")])
        ledger.write([entry(1)])
        assert [e.status for e in ledger.entries()] == ["ok"]


def test_entries_come_in_the_order_of_a_figure_those_without_it_last(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1), entry(2), entry(3, figures=Figures())])
        assert [e.overrides[0] for e in ledger.entries(by="p50_us")] == ["seed=2", "seed=1", "seed=3"]
        assert [e.overrides[0] for e in ledger.entries(by="p50_us", descending=True, limit=1)] == ["seed=1"]
        with pytest.raises(InvalidRequest, match=r"unknown figure 'p50' @ --sort. Did you mean 'p50_us'"):
            ledger.entries(by="p50")


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1)])
        with pytest.raises(OrchestratorError, match="the ledger"):
            ledger.write([entry(2), entry(3, run_dir=object())])
        assert [e.overrides[0] for e in ledger.entries()] == ["seed=1"]
        ledger.write([entry(2)])
        assert len(ledger.entries()) == 2


def test_only_points_of_the_statuses_that_count_compete(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(
            [entry(1), entry(2, status="numerics_failed"), entry(3, status="crashed"), entry(4, figures=Figures())]
        )
        assert [row[0] for row in ledger.timed(["ok"])] == [entry(1).key]
        assert [row[0] for row in ledger.timed(["ok", "crashed"])] == [entry(1).key, entry(3).key]


def test_many_keys_are_asked_for_at_once(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(entry(n) for n in range(1200))
        assert len(ledger.ends([entry(n).key for n in range(1500)])) == 1200


def test_what_is_no_ledger_is_told_in_a_paragraph(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no database at all, but long enough to be looked at " * 20)
    with pytest.raises(OrchestratorError, match=r"the ledger .*sweeps.sqlite cannot be used: file is not a database"):
        PointLedger.open(tmp_path)


def test_a_ledger_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.connection.execute("PRAGMA user_version=9")
    with pytest.raises(OrchestratorError, match="it has schema 9, and this version reads 1"):
        PointLedger.open(tmp_path)


WRITER = """
import sys
from pathlib import Path
from npucompose.experiment.sweep.run import PointEntry, PointLedger
with PointLedger.open(Path(sys.argv[1])) as ledger:
    for n in range(100000):
        ledger.write([PointEntry(key=f"{n:064x}", status="ok", overrides=(f"seed={n}",))])
        print(n, flush=True)
"""


def test_what_was_told_as_written_is_there_after_a_kill(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(40)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout.readlines() if line.endswith("\n")]
    with PointLedger.open(tmp_path) as ledger:
        keys = {e.key for e in ledger.entries()}
        assert keys >= {f"{n:064x}" for n in told}
        ledger.write([entry(1)])


def test_a_ledger_is_made_with_its_folder_and_marked_as_ours(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "store"
    with PointLedger.open(folder) as ledger:
        assert ledger.path == folder / FILE_NAME
        assert ledger.connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert ledger.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert ledger.connection.execute("PRAGMA synchronous").fetchone() == (1,)
        assert ledger.connection.isolation_level is None
        assert not ledger.connection.in_transaction
    with pytest.raises(sqlite3.ProgrammingError):
        ledger.connection.execute("SELECT 1")
    with PointLedger.open(folder):  # it is there already
        pass


def test_a_writer_waits_a_minute_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[dict[str, object]] = []
    connect = sqlite3.connect

    def noted(path: object, **options: object) -> sqlite3.Connection:
        connected.append(options)
        return connect(path, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", noted)
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1)])
    with PointLedger.read(tmp_path):
        pass
    guarded = {"isolation_level": None, "factory": Connection}
    assert connected == [{**guarded, "timeout": 60}, guarded]


def test_who_reads_sees_what_somebody_is_writing_and_writes_nothing(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1)])
        with PointLedger.read(tmp_path) as reader:
            assert len(reader.entries()) == 1
            with pytest.raises(OrchestratorError, match="readonly"):
                reader.write([entry(2)])
    with PointLedger.read(tmp_path) as reader:
        assert len(reader.entries()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_who_reads_what_is_no_ledger_is_told(tmp_path: Path) -> None:
    with pytest.raises(OrchestratorError, match=r"cannot be used: .*No such file"):
        PointLedger.read(tmp_path)
    with PointLedger.open(tmp_path) as ledger:
        ledger.connection.execute("PRAGMA user_version=0")
    with pytest.raises(OrchestratorError, match="it has schema 0, and this version reads 1"):
        PointLedger.read(tmp_path)


def test_a_batch_that_failed_leaves_no_transaction_open(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        with pytest.raises(OrchestratorError):
            ledger.write([entry(2, run_dir=object())])
        assert not ledger.connection.in_transaction
        ledger.write([entry(3)])
        assert not ledger.connection.in_transaction


def test_entries_are_limited_sorted_both_ways_and_by_key_where_equal(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(n, figures=Figures(p50_us=float(n % 2))) for n in (4, 3, 2, 1)])

        def seeds(**how: object) -> list[str]:
            return [e.overrides[0][5:] for e in ledger.entries(**how)]  # type: ignore[arg-type]

        assert seeds() == ["2", "4", "1", "3"]
        assert seeds(descending=True) == ["1", "3", "2", "4"]
        assert seeds(limit=3) == ["2", "4", "1"]
        assert seeds(limit=0) == ["2", "4", "1", "3"]
        assert seeds(by="status") == ["1", "2", "3", "4"]
        assert len(seeds(by="ended")) == 4


def test_a_timed_row_has_its_figures_and_overrides(tmp_path: Path) -> None:
    figures = Figures(model="m", target="t", p50_us=1.5, pool_bytes=2, peak_rss_bytes=3, compile_s=4.5)
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([entry(1, figures=figures)])
        assert list(ledger.timed(["ok"])) == [(entry(1).key, ["seed=1", "passes=[a,b]"], ("m", "t", 1.5, 2, 3, 4.5))]
        assert list(ledger.timed(["failed"])) == []
        assert ledger.ends([]) == {}
