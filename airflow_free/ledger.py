"""What became of every point that was ever swept, by the content of its key: one SQLite file beside the store.

    root/sweeps.sqlite

Only ends are written, each in one transaction: a sweep that is killed leaves the points that it ended and no trace of
the others, so that "not in the ledger" and "still to be run" are the same thing. Reports are not in it, but where they
are, and the few figures that a table of many points needs.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import attrs
from attrs import field, frozen

from airflow_free.errors import InvalidRequest, OrchestratorError, exit_status_of, unknown
from airflow_free.sqlite_files import Connection, compare_schema, connect, connect_to_copy
from airflow_free.store import now

if TYPE_CHECKING:
    from typing_extensions import Self

FILE_NAME = "sweeps.sqlite"
SCHEMA = 1
AT_ONCE = 500
"""Keys in one question; an older SQLite takes 999 variables."""


@frozen(kw_only=True)
class Entry:
    """The end of one point. A project's own kind adds `figures`, an attrs value: a column for each of its fields."""

    key: str
    status: str
    overrides: tuple[str, ...]
    error: str | None = None
    exit_signal: str | None = None
    run_dir: str | None = None
    """From the ledger's folder; None for an illegal point, which has none."""
    seconds: float = 0.0
    ended: str = field(factory=now)
    figures: Any = None


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
TRIAL = "study, number, key, state, params, objectives"
E = TypeVar("E", bound=Entry)
_NUMBERS, _TEXTS = frozenset((int, float, type(None))), frozenset((str,))
"""Types of what is asked of a whole ledger: looking at them costs a microsecond a row, making entries twenty."""


class Ledger(ABC, Generic[E]):
    """`with MyLedger.open(folder) as ledger`; several sweeps may write at the same time. A project says in a class of
    its own what an entry is, and how a row becomes one."""

    entry: ClassVar[type[Any]]
    """The kind of its entries."""
    figures: ClassVar[type[Any]]
    """Of `Entry.figures`: an attrs class of numbers and texts."""
    statuses: ClassVar[tuple[str, ...]]
    sortable: ClassVar[tuple[str, ...]]
    """Columns in whose order entries can be asked for."""

    @staticmethod
    @abstractmethod
    def structure(kind: type[Any], tree: Mapping[str, object]) -> Any:
        """The value (an entry, a trial) of a tree that anybody may have written; an exception with `problems`, a
        sentence for each wrong value."""

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        return (*OWN, *(f.name for f in attrs.fields(cls.figures)))

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path, self.connection = path, connection

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The ledger in `folder`, made where there is none; OrchestratorError when what is there is none of ours, or
        belongs to somebody else."""
        path = folder / FILE_NAME
        with usable(path):
            folder.mkdir(parents=True, exist_ok=True)
            connection = connect(path, timeout_s=60)
            with _closed_if_refused(connection), usable(path, connection):
                connection.execute("PRAGMA journal_mode=WAL").fetchall()
                connection.execute("PRAGMA synchronous=NORMAL")
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    cls._make(connection)
                cls._check(connection)
        return cls(path, connection)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The ledger that is in `folder`, which anybody may have written: a copy is read, and nothing there changed.
        OrchestratorError when it is none of ours."""
        path = folder / FILE_NAME
        with usable(path):
            connection = connect_to_copy(path)
            with _closed_if_refused(connection), usable(path, connection):
                cls._check(connection)
        return cls(path, connection)

    @classmethod
    def _make(cls, connection: Connection) -> None:
        """The tables, in a database that holds none; two sweeps may begin at the same time."""
        connection.execute("BEGIN IMMEDIATE")
        compare_schema(connection, dict.fromkeys(cls._tables(), ()))
        points = ", ".join(cls.columns()[1:])
        connection.execute(f"CREATE TABLE IF NOT EXISTS points (key PRIMARY KEY, {points}) WITHOUT ROWID")
        trials = f"{TRIAL}, PRIMARY KEY (study, number)"
        connection.execute(f"CREATE TABLE IF NOT EXISTS trials ({trials}) WITHOUT ROWID")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.execute("COMMIT")

    @classmethod
    def _check(cls, connection: Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA:
            raise sqlite3.DatabaseError(f"it has schema {version}, and this version reads {SCHEMA}")
        compare_schema(connection, cls._tables())

    @classmethod
    def _tables(cls) -> dict[str, tuple[str, ...]]:
        return {"points": cls.columns(), "trials": tuple(TRIAL.split(", "))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def write(self, entries: Iterable[E]) -> None:
        """All of them or none; an earlier end of the same point is replaced."""
        columns = self.columns()
        rows = [(*(_as_cell(getattr(entry, name)) for name in OWN), *attrs.astuple(entry.figures)) for entry in entries]
        with usable(self.path, self.connection):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                marks = ",".join("?" * len(columns))
                into = f"points ({', '.join(columns)})"
                self.connection.executemany(f"INSERT OR REPLACE INTO {into} VALUES ({marks})", rows)
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def ends(self, keys: Sequence[str]) -> dict[str, E]:
        """{key: its end} of those that have ended."""
        found: dict[str, E] = {}
        with usable(self.path, self.connection):
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self.connection.execute(f"SELECT {self._selected} FROM points WHERE key IN ({marks})", some)
                found.update((entry.key, entry) for entry in map(self._entry, rows))
        return found

    def entries(self, *, by: str | None = None, descending: bool = False, limit: int | None = None) -> list[E]:
        """The first `limit` in the order of a column (the first that is sortable); points without it come last."""
        by = by or self.sortable[0]
        if by not in self.sortable:
            raise InvalidRequest(unknown("figure", by, self.sortable, "--sort"))
        order = f"{by} IS NULL, {by} {'DESC' if descending else 'ASC'}, key"
        with usable(self.path, self.connection):
            rows = self.connection.execute(
                f"SELECT {self._selected} FROM points ORDER BY {order} LIMIT ?", (limit or -1,)
            )
            return [self._entry(row) for row in rows]

    def rows(
        self, texts: Sequence[str], numbers: Sequence[str], statuses: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[str], tuple[Any, ...]]]:
        """(key, overrides, the values of these columns) of every point of these statuses that has the first of the
        numbers: rows and no entries, because it is asked of a whole ledger."""
        marks = ",".join("?" * len(statuses))
        with usable(self.path, self.connection):
            for key, overrides, *found in self.connection.execute(
                f"SELECT {', '.join(('key', 'overrides', *texts, *numbers))} FROM points "
                f"WHERE {numbers[0]} IS NOT NULL AND status IN ({marks})",
                statuses,
            ):
                said = _texts(overrides)
                if said is None or not _NUMBERS.issuperset(map(type, found[len(texts) :])):
                    self._refuse("key", key)
                yield key, said or [], tuple(found)

    def write_trial(self, trial: Trial) -> None:
        """An earlier end of the same trial, one that is run again, is replaced."""
        row = (trial.study, trial.number, trial.key, trial.state, json.dumps(trial.params), json.dumps(trial.values))
        with usable(self.path, self.connection):
            self.connection.execute("INSERT OR REPLACE INTO trials VALUES (?,?,?,?,?,?)", row)

    def trials(self, study: str) -> list[Trial]:
        """Those of one study that have ended, by number."""
        with usable(self.path, self.connection):
            rows = self.connection.execute(f"SELECT {TRIAL} FROM trials WHERE study = ? ORDER BY number", (study,))
            return [self._trial(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """{status: how many}."""
        with usable(self.path, self.connection):
            found = dict(self.connection.execute("SELECT status, count(*) FROM points GROUP BY status ORDER BY 2 DESC"))
            for status in found:
                if status not in self.statuses:
                    self._refuse("status", status)
            return found

    def _refuse(self, column: str, value: object) -> None:
        """Raise what is wrong with the first row that has this value."""
        row = self.connection.execute(f"SELECT {self._selected} FROM points WHERE {column} IS ? LIMIT 1", (value,))
        self._entry(row.fetchone())

    def refused_trial(self, trial: Trial, why: object) -> OrchestratorError:
        """What to raise for a trial whose parts are of the right types and that fits no search."""
        return self._refused(_trial_name(trial.study, trial.number), why)

    @property
    def _selected(self) -> str:
        return ", ".join(self.columns())

    def _entry(self, row: Sequence[object]) -> E:
        values = dict(zip(self.columns(), row, strict=True))
        tree = {name: values.pop(name) for name in OWN}
        tree["overrides"] = _from_json(tree["overrides"])
        return self._typed(self.entry, {**tree, "figures": values}, f"the point {tree['key']!r}")

    def _trial(self, row: Sequence[object]) -> Trial:
        tree = dict(zip((f.name for f in attrs.fields(Trial)), row, strict=True))
        tree |= {name: _from_json(tree[name]) for name in ("params", "values")}
        return self._typed(Trial, tree, _trial_name(tree["study"], tree["number"]))

    def _typed(self, kind: type[Any], tree: Mapping[str, object], name: str) -> Any:
        """Anybody's file may hold anything."""
        try:
            return self.structure(kind, tree)
        except Exception as error:
            if exit_status_of(error) is None:
                raise
            raise self._refused(name, "; ".join(getattr(error, "problems", (str(error),)))) from None

    def _refused(self, name: str, why: object) -> OrchestratorError:
        return OrchestratorError(f"the ledger {self.path} cannot be used: {name}: {why}.")


@contextmanager
def usable(path: Path, connection: Connection | None = None) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite quotes what it cannot read
        interrupted = str(error) == "interrupted"
        if connection is not None and (connection.stopped or (interrupted and not connection.late)):
            raise connection.stopped or KeyboardInterrupt from None
        late = ""
        if connection is not None and interrupted:
            late = f", after {connection.budget_s:.1f} s of processor time"
        raise OrchestratorError(f"the ledger {path} cannot be used: {error}{late}.") from error


@contextmanager
def _closed_if_refused(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _as_cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, tuple) else value


def _trial_name(study: object, number: object) -> str:
    return f"trial {number!r} of the study {study!r}"


def _from_json(text: object) -> object:
    """What the text says; a text that is no JSON, or no text, as it is, for `Ledger.structure` to refuse."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _texts(text: object) -> list[str] | None:
    """A list of texts, from JSON; None for anything else."""
    found = _from_json(text)
    return found if isinstance(found, list) and _TEXTS.issuperset(map(type, found)) else None
