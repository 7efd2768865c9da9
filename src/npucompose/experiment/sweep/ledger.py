"""What became of every point that was ever swept, by the content of its key: one SQLite file beside the store.

    .npucompose/sweeps.sqlite

Only ends are written, each in one transaction: a sweep that is killed leaves the points that it ended and no trace of
the others, so that "not in the ledger" and "still to be run" are the same thing. Reports are not in it, but where they
are, and the few figures that a table of many points needs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

import attrs
from attrs import field, frozen

from npucompose.errors import ConfigError, NpuComposeError, unknown
from npucompose.schema.figures import MEASURED, Figures
from npucompose.schema.record import Status
from npucompose.schema.structure import structure

FILE_NAME = "sweeps.sqlite"
SCHEMA = 1
AT_ONCE = 500
"""Keys in one question; an older SQLite takes 999 variables."""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@frozen(kw_only=True)
class Entry:
    """The end of one point."""

    key: str
    status: Status
    overrides: tuple[str, ...]
    error: str | None = None
    exit_signal: str | None = None
    run_dir: str | None = None
    """From the ledger's folder; None for an illegal point, which has none."""
    seconds: float = 0.0
    ended: str = field(factory=_now)
    figures: Figures = field(factory=Figures)


TrialState = Literal["complete", "pruned", "failed"]


@frozen(kw_only=True)
class Trial:
    """The end of one trial of a search: which point it asked for, and what the sampler was told."""

    study: str
    number: int
    key: str
    state: TrialState
    params: Mapping[str, Any]
    """{key of the space: what the sampler chose}."""
    values: tuple[float, ...] | None
    """The objectives; None unless complete."""


OWN = tuple(f.name for f in attrs.fields(Entry) if f.name != "figures")
COLUMNS = (*OWN, *(f.name for f in attrs.fields(Figures)))
SELECTED = ", ".join(COLUMNS)
TRIAL = "study, number, key, state, params, objectives"
Row = TypeVar("Row", Entry, Trial)
_FIGURES, _TEXTS = frozenset((int, float, type(None))), frozenset((str,))
"""Types of what is asked of a whole ledger: looking at them costs a microsecond a row, making entries twenty."""


class Ledger:
    """`with Ledger.open(folder) as ledger`; several sweeps may write at the same time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection

    @staticmethod
    def open(folder: Path) -> Ledger:
        """The ledger in `folder`, made where there is none; NpuComposeError when what is there is none of ours."""
        path = folder / FILE_NAME
        with _told(path):
            folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=60, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA):
                raise sqlite3.DatabaseError(f"it has schema {version}, and this version reads {SCHEMA}")
            columns = ", ".join(COLUMNS[1:])
            connection.execute(f"CREATE TABLE IF NOT EXISTS points (key PRIMARY KEY, {columns}) WITHOUT ROWID")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS trials (study, number, key, state, params, objectives,"
                " PRIMARY KEY (study, number)) WITHOUT ROWID"
            )
            connection.execute(f"PRAGMA user_version={SCHEMA}")
        return Ledger(path, connection)

    @staticmethod
    def read(folder: Path) -> Ledger:
        """The ledger that is in `folder`, which may be a stranger's: nothing there is written. ConfigError when it is
        none of ours."""
        path = folder / FILE_NAME
        # While somebody writes, its latest rows are in a file beside it, which only a database that is open can read.
        beside = path.with_name(f"{FILE_NAME}-wal")
        how = "mode=ro" if beside.exists() and beside.stat().st_size else "mode=ro&immutable=1"
        with _told(path):
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", timeout=60, isolation_level=None, uri=True)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA:
                connection.close()
                raise sqlite3.DatabaseError(f"it has schema {version}, and this version reads {SCHEMA}")
        return Ledger(path, connection)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def write(self, entries: Iterable[Entry]) -> None:
        """All of them or none; an earlier end of the same point is replaced."""
        rows = [_as_row(entry) for entry in entries]
        with _told(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                marks = ",".join("?" * len(COLUMNS))
                self.connection.executemany(f"INSERT OR REPLACE INTO points VALUES ({marks})", rows)
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def of(self, keys: Sequence[str]) -> dict[str, Entry]:
        """{key: its end} of those that have ended."""
        found: dict[str, Entry] = {}
        with _told(self.path):
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self.connection.execute(f"SELECT {SELECTED} FROM points WHERE key IN ({marks})", some)
                found.update((entry.key, entry) for entry in map(_of_row, rows))
        return found

    def entries(self, *, by: str = "p50_us", descending: bool = False, limit: int | None = None) -> list[Entry]:
        """The first `limit` in the order of a figure; points without it come last."""
        if by not in (*MEASURED, "ended", "status"):
            raise ConfigError(unknown("figure", by, (*MEASURED, "ended", "status"), "--sort"))
        order = f"{by} IS NULL, {by} {'DESC' if descending else 'ASC'}, key"
        with _told(self.path):
            rows = self.connection.execute(f"SELECT {SELECTED} FROM points ORDER BY {order} LIMIT ?", (limit or -1,))
            return [_of_row(row) for row in rows]

    def timed(self, statuses: Sequence[Status]) -> Iterator[tuple[Any, ...]]:
        """(key, model, target, overrides, p50_us, pool_bytes, peak_rss_bytes, compile_s) of every point of these
        statuses that was timed: rows and no entries, because it is asked of a whole ledger."""
        marks = ",".join("?" * len(statuses))
        with _told(self.path):
            for key, model, target, overrides, *figures in self.connection.execute(
                "SELECT key, model, target, overrides, p50_us, pool_bytes, peak_rss_bytes, compile_s FROM points "
                f"WHERE p50_us IS NOT NULL AND status IN ({marks})",
                statuses,
            ):
                said = _texts(overrides)
                if said is None or not _FIGURES.issuperset(map(type, figures)):
                    self._refuse("key", key)
                yield key, model, target, said, *figures

    def write_trial(self, trial: Trial) -> None:
        """An earlier end of the same trial, one that is run again, is replaced."""
        row = (trial.study, trial.number, trial.key, trial.state, json.dumps(trial.params), json.dumps(trial.values))
        with _told(self.path):
            self.connection.execute("INSERT OR REPLACE INTO trials VALUES (?,?,?,?,?,?)", row)

    def trials(self, study: str) -> list[Trial]:
        """Those of one study that have ended, by number."""
        with _told(self.path):
            rows = self.connection.execute(f"SELECT {TRIAL} FROM trials WHERE study = ? ORDER BY number", (study,))
            return [_of_trial_row(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """{status: how many}."""
        with _told(self.path):
            found = dict(self.connection.execute("SELECT status, count(*) FROM points GROUP BY status ORDER BY 2 DESC"))
            for status in found:
                if status not in get_args(Status):
                    self._refuse("status", status)
            return found

    def _refuse(self, column: str, value: object) -> None:
        """Raise what is wrong with the first row that has this value."""
        row = self.connection.execute(f"SELECT {SELECTED} FROM points WHERE {column} IS ? LIMIT 1", (value,)).fetchone()
        _of_row(row)

    def refused_trial(self, trial: Trial, why: object) -> NpuComposeError:
        """What to raise for a trial whose parts are of the right types and that fits no search."""
        return NpuComposeError(
            f"the ledger {self.path} cannot be used: {_trial_name(trial.study, trial.number)}: {why}."
        )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite quotes what it cannot read
        raise NpuComposeError(f"the ledger {path} cannot be used: {error}.") from error
    except _NoneOfOurs as error:
        raise NpuComposeError(f"the ledger {path} cannot be used: {error}.") from None


class _NoneOfOurs(Exception):
    """A row that this file did not write: which one, and every wrong value in it."""


def _as_row(entry: Entry) -> tuple[object, ...]:
    own = {name: getattr(entry, name) for name in OWN}
    own["overrides"] = json.dumps(entry.overrides)
    return (*own.values(), *attrs.astuple(entry.figures))


def _of_row(row: Sequence[object]) -> Entry:
    values = dict(zip(COLUMNS, row, strict=True))
    tree = {name: values.pop(name) for name in OWN}
    tree["overrides"] = _of_json(tree["overrides"])
    return _typed(Entry, {**tree, "figures": values}, f"the point {tree['key']!r}")


def _of_trial_row(row: Sequence[object]) -> Trial:
    tree = dict(zip((f.name for f in attrs.fields(Trial)), row, strict=True))
    tree |= {name: _of_json(tree[name]) for name in ("params", "values")}
    return _typed(Trial, tree, _trial_name(tree["study"], tree["number"]))


def _trial_name(study: object, number: object) -> str:
    return f"trial {number!r} of the study {study!r}"


def _typed(kind: type[Row], tree: Mapping[str, object], name: str) -> Row:
    """A stranger's file may hold anything."""
    try:
        return structure(kind, tree)
    except ConfigError as error:
        raise _NoneOfOurs(f"{name}: {'; '.join(error.problems)}") from None


def _of_json(text: object) -> object:
    """What the text says; a text that is no JSON, or no text, as it is, for `structure` to refuse."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _texts(text: object) -> list[str] | None:
    """A list of texts, from JSON; None for anything else."""
    found = _of_json(text)
    return found if isinstance(found, list) and _TEXTS.issuperset(map(type, found)) else None
