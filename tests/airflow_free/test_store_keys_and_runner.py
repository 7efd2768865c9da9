"""Records and their files, keys and their values, and the events of a run, each by itself."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import attrs
import pytest

from airflow_free import keys
from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.keys import Ingredients, canonical, code_digests, digest, plain
from airflow_free.stage import Event, Runner, Stage, StageFailed
from airflow_free.store import RECORD_SCHEMA, Record, Store

KEY = "0" * 64

# The store.


def record(**more: Any) -> Record:
    return Record(**{"stage": "check", "key": KEY, "facts": {"a": 1}, "seconds": 2.5, **more})


def test_a_record_says_its_schema_and_all_its_fields_in_utc() -> None:
    made = record(environment={"e": 1}, provenance={"p": 2})
    told = json.loads(made.text())
    assert told == {
        "schema": RECORD_SCHEMA, "stage": "check", "key": KEY, "facts": {"a": 1}, "seconds": 2.5,
        "created": made.created, "environment": {"e": 1}, "provenance": {"p": 2},
    }  # fmt: skip
    assert made.created.endswith("+00:00")
    assert len(made.created) == len("2026-01-01T00:00:00+00:00")
    assert Record.from_text(made.text()) == made
    assert made.text().endswith("}\n")
    with pytest.raises(ValueError, match="JSON compliant"):
        record(facts={"a": float("nan")}).text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told | {"schema": 2}, "schema 2, this version reads 1"),
        (lambda told: {k: v for k, v in told.items() if k != "schema"}, "schema None"),
        (lambda told: told | {"more": 1}, "fields missing or unknown: more"),
        (lambda told: {k: v for k, v in told.items() if k not in ("key", "facts")}, "unknown: facts, key"),
        (lambda told: told | {"facts": []}, "'facts' is not a mapping"),
        (lambda told: [told], "a mapping is wanted, not a list"),
    ],
)
def test_what_is_no_record_says_why(change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Record.from_text(json.dumps(change(json.loads(record().text()))))


def test_a_problem_is_a_warning_at_the_one_who_reads(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(record())
    assert path == tmp_path / "records" / "check" / f"{KEY}.json"
    path.write_text("{")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert store.read("check", KEY) is None
    assert len(told) == 1
    assert f"{path} cannot be read and counts as absent" in str(told[0].message)


def test_files_of_a_record_lie_under_its_stage_and_key_and_are_never_replaced(tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("first")
    store.keep_files("check", KEY, folder, ["deep/a.txt"])
    assert store.file("check", KEY, "deep/a.txt") == tmp_path / "store" / "files" / "check" / KEY / "deep" / "a.txt"
    (folder / "deep" / "a.txt").unlink()
    (folder / "deep" / "a.txt").write_text("second")
    store.keep_files("check", KEY, folder, ["deep/a.txt"])
    assert store.file("check", KEY, "deep/a.txt").read_text() == "first"
    assert store.has_files("check", KEY, [])
    assert store.has_files("check", KEY, ["deep/a.txt"])
    assert not store.has_files("check", KEY, ["deep/a.txt", "b.txt"])
    assert not store.has_files("check", KEY, ["deep"]), "a folder is no file"
    store.bring_files("check", KEY, folder)
    assert (folder / "deep" / "a.txt").read_text() == "second", "what is there stays"
    store.bring_files("check", KEY, tmp_path / "new")
    assert (tmp_path / "new" / "deep" / "a.txt").read_text() == "first"
    store.put_file("check", "1" * 64, "x/y.bin", b"bytes")
    store.put_file("check", "1" * 64, "x/y.bin", b"other")
    assert store.file("check", "1" * 64, "x/y.bin").read_bytes() == b"other"


def test_a_store_that_cannot_be_written_says_how_to_name_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OrchestratorError, match=r"the store .*file cannot be written: .*Take another"):
        Store(tmp_path / "file", advice="Take another.").write(record())


def test_records_come_by_stage_and_key_and_those_of_another_place_do_not_count(tmp_path: Path) -> None:
    told: list[str] = []
    store = Store(str(tmp_path), on_problem=told.append)  # type: ignore[arg-type]
    for stage, key in (("b", "0" * 64), ("a", "2" * 64), ("a", "1" * 64)):
        store.write(record(stage=stage, key=key))
    assert [(one.stage, one.key[0]) for one in store.records()] == [("a", "1"), ("a", "2"), ("b", "0")]
    store.path("a", "3" * 64).write_text(record(stage="a", key="1" * 64).text())
    assert store.read("a", "3" * 64) is None
    assert [line.endswith("holds the record of another stage or key; it counts as absent.") for line in told] == [True]


# Keys.


class Colour(Enum):
    RED = "red"


@attrs.frozen
class Value:
    path: Path
    many: tuple[int, ...]


def test_each_kind_of_value_has_its_plain_form() -> None:
    given = {
        1: Value(Path("/a"), (1, 2)), "e": Colour.RED, "set": {"b", "a"}, "frozen": frozenset({2, 1}),
        "map": MappingProxyType({"x": (None, True, 1.5)}),
    }  # fmt: skip
    assert plain(given) == {
        "1": {"path": "/a", "many": [1, 2]}, "e": "red", "set": ["a", "b"], "frozen": [1, 2],
        "map": {"x": [None, True, 1.5]},
    }  # fmt: skip
    assert canonical({"b": 1, "a": (1.5, None, "é")}) == '{"b":1,"a":[1.5,null,"\\u00e9"]}'
    assert digest({"a": 1}) == digest(MappingProxyType({"a": 1}))
    assert len(digest(1)) == 64


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, float("inf")]}, r"inf has no place in a key or a record @ a\[1\]\."),
        (float("nan"), "nan has no place in a key or a record @ the value"),
        ({"a": {"b": b"x"}}, r"a bytes cannot be written as JSON @ a\.b\."),
        (object(), "a object cannot be written as JSON @ the value"),
    ],
)
def test_what_has_no_plain_form_is_named_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        plain(value)


class One(Stage[Any]):
    name: ClassVar[str] = "one"
    reads: ClassVar[tuple[str, ...]] = ("model.size", "seed")

    def run(self, live: Any, progress: Any) -> Mapping[str, Any]:
        progress(0.5)
        if isinstance(live, Exception):
            raise live
        return {"seen": (1, 2)}


class Two(One):
    name: ClassVar[str] = "two"
    needs: ClassVar[tuple[str, ...]] = ("one",)
    reads: ClassVar[tuple[str, ...]] = ()


def ingredients(**values: Any) -> Ingredients:
    return Ingredients(
        values={"seed": 1, "model": {"size": 2, "name": "m"}, **values},
        versions={"torch": "2"},
        device={},
        code={"a": "x"},
    )


def test_a_key_is_made_of_what_is_read_what_is_needed_and_the_context() -> None:
    """Its format is 1 since the first version: another one would find no record that was stored before."""
    made = ingredients()
    around = [[("torch", "2")], [], [("a", "x")]]
    found = made.keys([One(), Two()])
    one = digest([1, "one", {"model.size": 2, "seed": 1}, {}, *around])
    assert found == {"one": one, "two": digest([1, "two", {}, {"one": one}, *around])}
    assert made.key == digest([1, {"seed": 1, "model": {"size": 2, "name": "m"}}, *around])
    assert made.context == {"versions": {"torch": "2"}, "device": {}, "code": {"a": "x"}}


def test_what_decides_no_result_is_in_no_key() -> None:
    made = ingredients()
    named = ingredients(model={"size": 2, "called": "mine", "name": "m"})
    assert named.key != made.key
    outside = attrs.evolve(named, outside=frozenset({"model.called", "model.gone.b", "seed.b", "gone"}))
    assert outside.values == named.values
    assert (outside.key, outside.keys([One(), Two()])) == (made.key, made.keys([One(), Two()]))
    assert attrs.evolve(named, outside=frozenset({"model"})).key == ingredients_without_model().key
    with pytest.raises(InvalidRequest, match=r"unknown field 'model\.size'"):
        attrs.evolve(named, outside=frozenset({"model.size"})).keys([One()])


def ingredients_without_model() -> Ingredients:
    return attrs.evolve(ingredients(), values={"seed": 1})


@pytest.mark.parametrize("values", [{"model": {"name": "m"}}, {"model": 3}])
def test_a_field_that_is_not_there_is_named_with_the_stage_that_reads_it(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown field 'model\.size' @ reads of stage 'one'"):
        ingredients(**values).keys([One()])


def test_digests_of_packages_are_remembered_and_files_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = {"airflow_free.errors": "known"}
    found = code_digests(["airflow_free.errors", "airflow_free.stage"], remembered=remembered)
    assert found["airflow_free.errors"] == "known"
    assert remembered["airflow_free.stage"] == found["airflow_free.stage"] != "known"
    files = [tmp_path / str(k) / "model.py" for k in range(3)]
    for k, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(f"x = {k}")
    assert list(code_digests([], files)) == ["model.py", "model.py#2", "model.py#3"]
    assert len(set(code_digests([], files).values())) == 3
    with pytest.raises(InvalidRequest, match=r"the source file .*gone\.py is gone"):
        code_digests([], [tmp_path / "gone.py"])
    with pytest.raises(InvalidRequest, match="no module named 'no_such_module_at_all'; its source is part of a key"):
        code_digests(["no_such_module_at_all"])
    (tmp_path / "bare").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert code_digests(["bare"]) == {"bare": digest([])}, "a package without files"
    spec = SimpleNamespace(submodule_search_locations=None, origin=None)
    monkeypatch.setattr(keys.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(InvalidRequest, match="module 'bare' has no source file"):
        code_digests(["bare"])


# A run.


def test_a_run_tells_what_happens_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    events: list[Event] = []
    runner = Runner(store=Store(tmp_path), notify=events.append, environment={"e": 1}, provenance={"p": 2})
    order, names = [One(), Two()], {"one": "1" * 64, "two": "2" * 64}
    first = runner.run(order, names, None)
    assert [(e.kind, e.stage, e.fraction) for e in events] == [
        ("started", "one", None), ("progress", "one", 0.5), ("finished", "one", None),
        ("started", "two", None), ("progress", "two", 0.5), ("finished", "two", None),
    ]  # fmt: skip
    assert [(f.stage, f.key[0], f.facts, f.reused) for f in first] == [
        ("one", "1", {"seen": [1, 2]}, False), ("two", "2", {"seen": [1, 2]}, False),
    ]  # fmt: skip
    assert [e.seconds for e in events if e.kind == "finished"] == [f.seconds for f in first]
    kept = runner.store.read("one", "1" * 64)
    assert kept is not None
    assert (kept.environment, kept.provenance, kept.seconds) == ({"e": 1}, {"p": 2}, first[0].seconds)
    events.clear()
    again = runner.run(order, names, None)
    assert [attrs.evolve(f, reused=False) for f in again] == list(first)
    assert [f.reused for f in again] == [True, True]
    assert [(e.kind, e.stage, e.seconds) for e in events] == [("reused", f.stage, f.seconds) for f in first]


@pytest.mark.parametrize(
    ("cause", "status", "problems"),
    [
        (InvalidRequest("one.", "two."), 2, ("one.", "two.")),
        (OrchestratorError("no a."), 3, ("stage 'one' failed: no a.",)),
        (KeyError("mine"), 3, None),
    ],
)
def test_a_stage_that_fails_says_which_and_why(
    tmp_path: Path, cause: Exception, status: int, problems: tuple[str, ...] | None
) -> None:
    events: list[Event] = []
    with pytest.raises(StageFailed, match="stage 'one' failed: ") as failed:
        Runner(store=Store(tmp_path), notify=events.append).run([One()], {"one": KEY}, cause)
    error = failed.value
    assert (error.stage, error.cause, error.exit_status) == ("one", cause, status)
    if problems is not None:
        assert error.problems == problems
    assert [event.kind for event in events] == ["started", "progress", "failed"]
    assert events[-1].text
    assert error.__reduce__() == (StageFailed, ("one", cause))
    assert error.__cause__ is cause


def test_what_a_store_says_and_to_whom_is_given_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="positional"):
        Store(tmp_path, print)  # type: ignore[misc]
