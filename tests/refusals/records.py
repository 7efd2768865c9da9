"""Cases of what npucompose wrote itself, for who reads it from another's disk: recipes, reports, ledgers, versions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import yaml
from attrs import frozen

from airflow_free import sqlite_files
from airflow_free.keys import digest
from airflow_free.ledger import FILE_NAME, Trial
from airflow_free.store import Record, Store
from npucompose.experiment import lock
from npucompose.experiment.sweep import gather
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.report import json as report_json
from npucompose.results.record import Figures, Report
from npucompose.schema.experiment import Mode
from npucompose.table.options import option
from npucompose.table.structure import of_facts, structure
from npucompose.vendor import versions
from tests.refusals.case import ACCEPTED, Case, Unread

EXPERIMENT = {"seed": 1}
LOCKED: dict[str, Any] = {
    "schema": lock.SCHEMA,
    "configuration": digest(EXPERIMENT),
    "experiment": EXPERIMENT,
    "versions": {},
    "device": {},
    "sources": {},
    "result": {"status": "ok"},
}
REPORT = Report(key="a", status="ok", experiment={}).as_dict()
POINT = PointEntry(key="a" * 64, status="ok", overrides=("seed=1",), figures=Figures(model="add", p50_us=2.0))
TRIAL = Trial(study="s", number=0, key="a" * 64, state="complete", params={"seed": 1}, values=(2.0,))
RECORD = json.loads(Record(stage="compile", key="a" * 64, facts={}, seconds=1.0).text())


def in_no_folder_of_runs(folder: Path) -> object:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return gather._stores(())
    finally:
        os.chdir(before)


def recipe(**wrong: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "mine.yaml").write_text(yaml.safe_dump({**LOCKED, **wrong}))
        return lock.read(folder / "mine.yaml")

    return read


def report(content: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "report.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return report_json.load(folder)

    return read


def ledger(read: Callable[[PointLedger], Any], *statements: str) -> Callable[[Path], Any]:
    """One with a point and a trial, in which somebody wrote."""

    def of(folder: Path) -> Any:
        with PointLedger.open(folder) as made:
            made.write([POINT])
            made.write_trial(TRIAL)
        with sqlite3.connect(folder / FILE_NAME) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        with PointLedger.read(folder) as opened:
            return read(opened)

    return of


def opened(folder: Path) -> Any:
    with sqlite3.connect(folder / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version=7")
    connection.close()
    with PointLedger.open(folder) as there:
        return there.counts()


def another_users(is_theirs: Callable[[Path], bool]) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        with PointLedger.open(folder):
            pass
        with patch.object(sqlite_files, "foreign_owner", lambda place: 7 if is_theirs(place) else None):
            return opened_again(folder)

    return read


def opened_again(folder: Path) -> Any:
    with PointLedger.open(folder) as there:
        return there.counts()


def linked(folder: Path) -> Any:
    with PointLedger.open(folder):
        pass
    (folder / "mine").touch()
    os.link(folder / "mine", folder / f"{FILE_NAME}-wal")
    return opened_again(folder)


def with_a_super_journal(folder: Path) -> Any:
    with PointLedger.open(folder):
        pass
    (folder / f"{FILE_NAME}-journal").write_bytes(b"any" * 400 + sqlite_files.SUPER_JOURNAL)
    return opened_again(folder)


def interrupted(folder: Path) -> Any:
    """A signal while SQLite works, as its handler raises it."""
    with PointLedger.open(folder) as there, patch.object(sqlite_files.time, "thread_time") as clock:
        there.connection.set_progress_handler(there.connection._is_over, 1)  # private: the limit of time, at once
        clock.side_effect = [0.0, KeyboardInterrupt]
        try:
            return there.counts()
        except KeyboardInterrupt as error:
            raise Unread(type(error).__name__) from None


def points(text: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "points.json").write_text(text)
        return gather._of_sweep(folder)

    return read


def record(**wrong: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        tree = {**RECORD, **wrong}
        return Record.from_text(json.dumps({key: value for key, value in tree.items() if value is not ...}))

    return read


def written_below_a_file(folder: Path) -> Any:
    (folder / "file").touch()
    return Store(folder / "file").write(Record(stage="compile", key="a" * 64, facts={}, seconds=1.0))


def options(version: str, **values: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> None:
        if found := versions.refused({path.replace("__", "."): value for path, value in values.items()}, version):
            raise Unread(*found)

    return read


def mode(name: str, version: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> None:
        if found := versions.mode_refused(name, version):
            raise Unread(found)

    return read


LOCK, LEDGER, GATHER, STORE, DATABASES = (
    "npucompose.experiment.lock",
    "airflow_free.ledger",
    "npucompose.experiment.sweep.gather",
    "airflow_free.store",
    "airflow_free.sqlite_files",
)
REPORTS, RECORDS, FACTS, VERSIONS = (
    "npucompose.report.json",
    "npucompose.results.record",
    "npucompose.table.structure",
    "npucompose.vendor.versions",
)


@frozen(kw_only=True)
class Named:
    name: Literal["one"] = "one"
    one: Engine | None = None


@frozen(kw_only=True)
class OtherNamed:
    name: Literal["two"] = "two"
    two: int


@frozen(kw_only=True)
class Engine:
    seed: int = option(0, from_experiment="seed")


@frozen(kw_only=True)
class Toy:
    """One field of each kind."""

    number: float = 0.0
    word: Literal["a", "b"] = "a"
    maybe: int | None = None
    named: Named | OtherNamed = Named()
    texts: tuple[str, ...] = ()
    pair: tuple[int, int] = (0, 0)
    numbers: Mapping[str, int] = {}
    path: int = option(1, choices=(1, 2))


def toy(**said: Any) -> Callable[[Path], Any]:
    return lambda folder: of_facts(Toy, said, where="toy")


CASES = (
    Case(LOCK, "is no recipe of schema", recipe(schema=7), "mine.yaml is no recipe of schema 1: its schema is 7"),
    Case(
        LOCK,
        "{path}: {problem}",
        recipe(device={"name": 3}),
        "mine.yaml: 'device.name' must be text: 3",
        "'device.name' must be text: 3",
    ),
    Case(
        LOCK,
        "not a recipe's to say",
        recipe(experiment={"trust": True}, configuration=digest({"trust": True})),
        "experiment.trust is not a recipe's to say",
    ),
    Case(LOCK, "was changed after", recipe(experiment={"seed": 2}), "its experiment was changed after it was locked"),
    Case(LEDGER, "it has schema", opened, "it has schema 7, and this version reads 1", "lacks key"),
    Case(
        LEDGER,
        "it has schema",
        ledger(PointLedger.counts, "PRAGMA user_version=7"),
        "it has schema 7, and this version reads 1",
    ),
    Case(
        DATABASES,
        "no program of ours",
        ledger(PointLedger.counts, "CREATE VIEW more AS SELECT 1"),
        "it holds the view 'more', which no program of ours makes",
        "TypeError",
    ),
    Case(
        DATABASES,
        "lacks",
        ledger(PointLedger.entries, "DROP TABLE points"),
        "its table points lacks key, status",
        "no such table",
    ),
    Case(
        DATABASES,
        "(why)",
        another_users(lambda place: place.is_file()),
        "sweeps.sqlite belongs to another user (number 7)",
    ),
    Case(
        DATABASES,
        "{path.parent} belongs",
        another_users(Path.is_dir),
        "belongs to another user (number 7)",
    ),
    Case(
        DATABASES,
        "{place.name} belongs",
        another_users(lambda place: place.is_file()),
        "sweeps.sqlite belongs to another user (number 7)",
    ),
    Case(DATABASES, "is no file of its own", linked, "sweeps.sqlite-wal is no file of its own"),
    Case(DATABASES, "names a file", with_a_super_journal, "names a file that SQLite would delete"),
    Case(LEDGER, "connection.stopped", interrupted, "KeyboardInterrupt", "OperationalError: interrupted"),
    Case(LEDGER, "unknown('figure'", ledger(lambda made: made.entries(by="key")), "unknown figure 'key'"),
    Case(
        LEDGER,
        "_refuse('key'",
        ledger(lambda made: list(made.timed(["ok"])), "UPDATE points SET overrides = '[1]'"),
        "'overrides[0]' must be text: 1",
    ),
    Case(
        LEDGER,
        "_refuse('status'",
        ledger(PointLedger.counts, "UPDATE points SET status = 'fine'"),
        "'status' must be one of",
    ),
    Case(
        LEDGER,
        "from error",
        ledger(PointLedger.counts, "DROP TABLE points"),
        "cannot be used: its table points lacks",
        "DatabaseError",
    ),
    Case(
        LEDGER,
        "_typed :: from None",
        ledger(PointLedger.entries, "UPDATE points SET status = 'fine'"),
        "cannot be used: the point",
        "'status' must be",
    ),
    Case(GATHER, "nothing was run in", lambda folder: gather._lines(folder), "nothing was run in"),
    Case(GATHER, "nothing was run here", in_no_folder_of_runs, "nothing was run here: no sweep"),
    Case(GATHER, "is not the list", points('{"points": 3}'), "points.json is not the list of jobs", "TypeError"),
    Case(
        STORE,
        "a mapping is wanted",
        lambda folder: Record.from_text("[]"),
        "a mapping is wanted, not a list",
        "TypeError",
    ),
    Case(STORE, "this version reads", record(schema=7), "schema 7, this version reads 1"),
    Case(STORE, "missing or unknown", record(seconds=...), "fields missing or unknown: seconds", "TypeError"),
    Case(STORE, "'facts' is not", record(facts=[]), "'facts' is not a mapping"),
    Case(
        STORE,
        "no stage and key",
        lambda folder: Store(folder).path("../x", "a" * 64),
        "no stage and key that make a file",
    ),
    Case(STORE, "cannot be written", written_below_a_file, "cannot be written", "NotADirectoryError"),
    Case(
        REPORTS,
        "there is no",
        lambda folder: report_json.load(folder),
        "there is no report.json at",
        "there is no such file",
    ),
    Case(REPORTS, "is not a report: {error}", report("{"), "report.json is not a report: Expecting", "JSONDecodeError"),
    Case(REPORTS, "a mapping is wanted", report([]), "a mapping is wanted, not a list", "AttributeError"),
    Case(
        REPORTS,
        "{path}: {problem}",
        report({**REPORT, "schema": 7}),
        "report.json: report: 'schema' is 7",
        "report: 'schema'",
    ),
    Case(RECORDS, "'schema' is", report({**REPORT, "schema": 7}), "'schema' is 7; this version of npucompose reads"),
    Case(
        RECORDS,
        "unknown('status'",
        report({**REPORT, "status": "fine"}),
        "unknown status 'fine'",
        "'status' must be one of",
    ),
    Case(FACTS, "_read :: raise", report({**REPORT, "key": 3}), "'key' must be text: 3", "ClassValidationError"),
    Case(FACTS, "_Wrong(words, raw)", report({**REPORT, "key": 3}), "'key' must be text: 3 @ report"),
    Case(FACTS, "at most 64 bits", toy(number=2**70), "'number' must be a number of at most 64 bits"),
    Case(FACTS, "_literal :: raise", toy(word="c"), "'word' must be one of a, b: 'c'"),
    Case(
        FACTS,
        "_registered :: raise",
        lambda folder: structure(Mode, {"name": "fast"}, "mode"),
        "'name' must be one of max-autotune",
        "'name' must be in (",
    ),
    Case(FACTS, "_union :: raise", toy(maybe="3"), "'maybe' must be an integer or null: '3'"),
    Case(FACTS, "_named :: 'a mapping', raw", toy(named=3), "'named' must be a mapping: 3", "no attribute 'get'"),
    Case(FACTS, "whose name is one of", toy(named={"name": "c"}), "name is one of one, two: 'c'", "is missing"),
    Case(FACTS, "_sequence :: 'a list', raw", toy(texts="abc"), "'texts' must be a list: 'abc' @ toy"),
    Case(FACTS, "a list of {len(args)}", toy(pair=[1]), "'pair' must be a list of 2: [1]", "zip()"),
    Case(FACTS, "_mapping :: 'a mapping', raw", toy(numbers=3), "'numbers' must be a mapping: 3", "not iterable"),
    Case(FACTS, "whose keys are each", toy(numbers={1: 1}), "'numbers' must be a mapping whose keys are each text: 1"),
    Case(FACTS, "_all :: raise", toy(texts=["a", 1]), "'texts[1]' must be text: 1 @ toy"),
    Case(FACTS, "_class.read :: raise", toy(named={"name": "one", "one": 3}), "'one' must be a mapping: 3", ""),
    Case(FACTS, "_field :: raise", toy(path=7), "'path' must be one of 1, 2: 7 @ toy", "must be in (1, 2)"),
    Case(FACTS, "must be {error.expected}", toy(path=7), "'path' must be one of 1, 2: 7 @ toy"),
    Case(FACTS, "it has no default", toy(named={"name": "two"}), "'two' is missing @ toy.named: it has no default"),
    Case(
        FACTS,
        "comes from the experiment's",
        lambda folder: structure(Engine, {"seed": 3}, "engine"),
        "'seed' @ engine comes from the experiment's 'seed': set that, not this",
    ),
    Case(
        FACTS,
        "unknown('key'",
        lambda folder: structure(Engine, {"sead": 3}, "engine"),
        "unknown key 'sead' @ engine",
    ),
    Case(
        VERSIONS,
        "unknown('torch_npu version'",
        lambda folder: versions.known("9.9"),
        "unknown torch_npu version '9.9'",
        ACCEPTED,
    ),
    Case(
        VERSIONS,
        "has no such option",
        options("2.6.0", debug__deadlock_check=True),
        "torch_npu 2.6.0.post5 has no such option",
    ),
    Case(VERSIONS, "allowed()", options("2.6.0", mode="npugraph_ex"), "torch_npu 2.6.0.post5 takes"),
    Case(VERSIONS, "has no such package", mode("npugraph_ex", "2.6.0"), "torch_npu 2.6.0.post5 has no such package"),
)
