"""SQLite files that a stranger may have written, as data: the one way to open them.

A database can hold views that never end, triggers and expressions that run when somebody writes, and a journal beside
it that names a file to be deleted. What is read is a private copy without its journal, what is written belongs to us;
of both the schema is compared before a row is asked for, and every question has a deadline.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_free.foreign_files import foreign_owner, open_regular

MOST_BYTES = 2**30
"""Of a database that is read, and of its write-ahead log."""
MOST_IN_A_CELL = 2**24
BUDGET_S, BYTES_PER_S = 1.5, 2**22
"""Processor time of one question: so much, and a second more for so many bytes of the file. A sweep's ledger of 200 MB
is read whole in a tenth of that."""
SUPER_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""The last bytes of a rollback journal that names another file, which SQLite deletes when it rolls back
(sqlite.org/fileformat.html, 3; pager.c, readSuperJournal)."""
BESIDE = ("-journal", "-wal", "-shm")
_STEPS = 20_000
"""Of SQLite's machine, between two looks at the clock: about a millisecond."""
_TABLE = re.compile(
    r"CREATE TABLE (\w+) \((\w+(?: PRIMARY KEY)?(?:, \w+)*)(?:, PRIMARY KEY \(\w+(?:, \w+)*\))?\) WITHOUT ROWID"
)
"""A table of columns and a key: no type, constraint, default or expression."""


class Connection(sqlite3.Connection):
    """One whose questions end: after their budget of processor time, and at a signal, which SQLite alone would not
    notice; `stopped` is the exception of a signal then."""

    folder: Path | None = None
    """Of a private copy; it goes when this is closed."""
    late = False
    """The question ended because its budget was used up. One that was interrupted though it was not late ended at a
    signal, also where the signal came before `_is_over` could note it."""
    stopped: BaseException | None = None
    budget_s = BUDGET_S
    _began = 0.0

    def execute(self, *question: Any) -> sqlite3.Cursor:
        self._began = time.thread_time()
        return super().execute(*question)

    def executemany(self, *question: Any) -> sqlite3.Cursor:
        self._began = time.thread_time()
        return super().executemany(*question)

    def close(self) -> None:
        super().close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def guard(self, size: int) -> None:
        """Set what holds for every foreign database; asks nothing of its content."""
        self.budget_s = BUDGET_S + size / BYTES_PER_S
        self.set_progress_handler(self._is_over, _STEPS)
        if sys.version_info >= (3, 11):
            self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_IN_A_CELL)
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
            self.execute(f"PRAGMA {setting}").fetchall()

    def _is_over(self) -> bool:
        try:
            self.late = time.thread_time() - self._began > self.budget_s
        except BaseException as signalled:  # noqa: BLE001  a signal arrives while Python runs; SQLite would drop it
            self.stopped = signalled
        return self.late or self.stopped is not None


def why_not_written(path: Path) -> str | None:
    """Why a database is not opened for writing where it lies: of another user, through a link or a second name, or
    with a journal that would have a file deleted."""
    if (owner := foreign_owner(path.parent)) is not None:
        return f"the folder {path.parent} belongs to another user (number {owner})"
    for place in (path, *_beside(path)):
        try:
            found = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return f"{place.name} is no file of its own, but a link, a pipe or a second name of another file"
        if (owner := foreign_owner(place)) is not None:
            return f"{place.name} belongs to another user (number {owner})"
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and _ends_with(journal, SUPER_JOURNAL):
        return f"{journal.name} names a file that SQLite would delete: take the journal away, it is none of ours"
    return None


def connect(path: Path, timeout_s: float) -> Connection:
    """The database at `path`, made where there is none. sqlite3.DatabaseError says why it is not opened."""
    if why := why_not_written(path):
        raise sqlite3.DatabaseError(why)
    made = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, factory=Connection)
    try:
        made.guard(path.stat().st_size)
    except BaseException:
        made.close()
        raise
    return made


def connect_to_copy(path: Path) -> Connection:
    """What is in the database now, with the latest rows of its write-ahead log, as a copy that nothing can be written
    to. The file itself, and what lies beside it, is only read."""
    folder = Path(tempfile.mkdtemp(prefix="npucompose-"))
    copy = folder / "copy.sqlite"
    made = None
    try:
        for _ in range(5):
            before = _state(path)
            for end in ("", "-wal"):
                _copy(path.with_name(path.name + end), copy.with_name(copy.name + end), missing=bool(end))
            if _state(path) == before:  # or somebody has written between the two
                break
        made = sqlite3.connect(copy, isolation_level=None, factory=Connection)
        made.folder = folder
        made.guard(copy.stat().st_size)
        made.execute("PRAGMA query_only=ON")
    except BaseException:
        made.close() if made is not None else shutil.rmtree(folder, ignore_errors=True)
        raise
    return made


def compare_schema(connection: Connection, tables: Mapping[str, Sequence[str]]) -> None:
    """sqlite3.DatabaseError unless these tables with at least these columns are all that the database holds: no view,
    trigger, index, virtual table, default or check."""
    there = dict[str, set[str]]()
    for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master LIMIT 50"):
        found = _TABLE.fullmatch(text) if isinstance(text, str) and len(text) < 10_000 else None
        if kind != "table" or name not in tables or found is None or found[1] != name:
            what = f"{str(kind)[:20]} {str(name)[:60]!r}"
            raise sqlite3.DatabaseError(f"it holds the {what}, which no program of ours makes")
        there[name] = {column.removesuffix(" PRIMARY KEY") for column in found[2].split(", ")}
    for name, columns in tables.items():
        if lacking := [column for column in columns if column not in there.get(name, ())]:
            raise sqlite3.DatabaseError(f"its table {name} lacks {', '.join(lacking)}")


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in BESIDE]


def _ends_with(path: Path, end: bytes) -> bool:
    with open_regular(path, MOST_BYTES) as file:
        file.seek(-min(os.fstat(file.fileno()).st_size, len(end)), os.SEEK_END)
        return file.read() == end


def _state(path: Path) -> list[tuple[int, int]]:
    """What changes when somebody writes."""
    found = [os.stat(place) for place in (path, path.with_name(f"{path.name}-wal")) if place.exists()]
    return [(one.st_size, one.st_mtime_ns) for one in found]


def _copy(source: Path, place: Path, *, missing: bool) -> None:
    """A file anew; `missing` where there may be none."""
    place.unlink(missing_ok=True)
    if missing and not source.exists():
        return
    with open_regular(source, MOST_BYTES) as read, place.open("xb") as written:
        shutil.copyfileobj(read, written, 2**20)
