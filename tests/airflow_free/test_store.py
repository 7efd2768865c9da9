from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from attrs import evolve

from airflow_free.errors import OrchestratorError
from airflow_free.store import Record, Store, write_atomically
from tests.answers import answer

KEY = "a" * 64
OTHER = "b" * 64
RECORD = Record(stage="bake", key=KEY, facts={"loaves": [1, 2.5, None]}, seconds=1.5, provenance={"run": "outputs/1"})


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[str]) -> Store:
    return Store(tmp_path / "store", on_problem=told.append)


def test_a_record_is_found_again(store: Store, told: list[str]) -> None:
    store.write(RECORD)
    assert store.read("bake", KEY) == RECORD
    assert told == []


def test_what_was_never_written_is_absent_and_no_problem(store: Store, told: list[str]) -> None:
    assert store.read("bake", KEY) is None
    assert list(store.records()) == []
    assert told == []


def test_records_are_listed(store: Store) -> None:
    store.write(RECORD)
    store.write(evolve(RECORD, stage="taste", key=OTHER))
    assert [(record.stage, record.key) for record in store.records()] == [("bake", KEY), ("taste", OTHER)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        RECORD.text()[: len(RECORD.text()) // 2],
        "[]",
        "null",
        "\x00\x00\x00",
        RECORD.text().replace('"schema": 1', '"schema": 99'),
        RECORD.text().replace('"facts"', '"fact"'),
        json.dumps({**json.loads(RECORD.text()), "facts": [1]}),
        RECORD.text().replace(KEY, OTHER),
        RECORD.text().replace('"bake"', '"taste"'),
        "[" * 100_000,
    ],
    ids=["empty", "half", "list", "null", "zeros", "schema", "field", "facts", "other key", "other stage", "deep"],
)
def test_a_record_that_is_none_counts_as_absent_and_is_told(store: Store, told: list[str], text: str) -> None:
    path = store.write(RECORD)
    path.write_text(text)
    assert store.read("bake", KEY) is None
    assert len(told) == 1
    assert "counts as absent" in told[0]
    assert str(path) in told[0]
    store.write(RECORD)
    assert store.read("bake", KEY) == RECORD


def test_bytes_that_are_no_text_count_as_absent(store: Store, told: list[str]) -> None:
    store.write(RECORD).write_bytes(b"\xff\xfe\xff")
    assert store.read("bake", KEY) is None
    assert len(told) == 1


def test_a_write_that_fails_leaves_the_old_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.write(RECORD)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OrchestratorError, match=r"cannot be written.*No space left.*Take another\.$"):
        evolve(store, advice="Take another.").write(evolve(RECORD, facts={"loaves": []}))
    assert store.read("bake", KEY) == RECORD
    assert os.listdir(path.parent) == [path.name]


def test_a_temporary_file_of_a_killed_writer_is_no_record(store: Store) -> None:
    path = store.write(RECORD)
    (path.parent / f".{path.name}.1.abcd.tmp").write_text("half")
    assert list(store.records()) == [RECORD]


def test_a_stage_or_key_cannot_lead_out_of_the_store(store: Store) -> None:
    with pytest.raises(ValueError, match="file name"):
        store.read("../bake", KEY)
    with pytest.raises(ValueError, match="file name"):
        store.read("bake", "../" + KEY)


def _write_often(folder: str, number: int) -> None:
    store = Store(Path(folder))
    for _ in range(50):
        store.write(evolve(RECORD, facts={"writer": number, "ballast": "x" * 20_000}))


def test_writers_at_the_same_time_leave_one_whole_record(store: Store, told: list[str]) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(str(store.root), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        record = store.read("bake", KEY)
        assert record is None or len(record.facts["ballast"]) == 20_000
        writers[0].join(0.005)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert told == []
    assert len(os.listdir(store.path("bake", KEY).parent)) == 1


def test_a_file_is_written_with_the_rights_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_files_lie_beside_their_record_and_come_back(tmp_path: Path) -> None:
    store, made = Store(tmp_path / "store"), tmp_path / "made"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "a.txt").write_text("one")
    (made / "b.txt").write_text("two")
    (made / "not_named.txt").write_text("three")
    key = "0" * 64
    assert store.has_files("compile", key, [])
    assert not store.has_files("compile", key, ["b.txt"])
    store.keep_files("compile", key, made, ["deep/a.txt", "b.txt"])
    assert store.has_files("compile", key, ["deep/a.txt", "b.txt"])
    assert not store.has_files("compile", "1" * 64, ["b.txt"])
    back = tmp_path / "back"
    store.bring_files("compile", key, back)
    assert {f.relative_to(back).as_posix(): f.read_text() for f in back.rglob("*") if f.is_file()} == {
        "deep/a.txt": "one",
        "b.txt": "two",
    }


def test_a_disk_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuses)
    (tmp_path / "b.txt").write_text("two")
    store = Store(tmp_path / "store")
    store.keep_files("compile", "0" * 64, tmp_path, ["b.txt"])
    store.bring_files("compile", "0" * 64, tmp_path / "back")
    assert (tmp_path / "back" / "b.txt").read_text() == "two"


def test_a_record_is_a_file_that_people_can_read() -> None:
    assert answer(RECORD.text(), indent=1)["schema"] == 1
    with pytest.raises(ValueError, match="JSON"):
        evolve(RECORD, seconds=float("nan")).text()
