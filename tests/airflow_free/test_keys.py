from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen
from bakery import BAKERY, EXPERIMENT, Taste, ingredients
from hypothesis import given
from hypothesis import strategies as st

from airflow_free.errors import InvalidRequest
from airflow_free.keys import canonical, code_digests, digest, plain

ORDER = BAKERY.order(["taste"])
KEYS = ingredients().keys(ORDER)


def changed(**changes: Any) -> set[str]:
    """The stages whose key is another one."""
    other = ingredients(**changes).keys(ORDER)
    return {name for name in KEYS if KEYS[name] != other[name]}


def test_equal_ingredients_give_equal_keys() -> None:
    assert changed() == set()


def test_a_field_changes_the_stages_that_read_it_and_all_that_need_them() -> None:
    assert changed(experiment={**EXPERIMENT, "flour": "oat"}) == {"knead", "bake", "taste"}
    assert changed(experiment={**EXPERIMENT, "oven": {"heat": 250, "light": True}}) == {"bake", "taste"}


def test_a_field_that_nobody_reads_changes_nothing_but_the_key_of_the_experiment() -> None:
    other = {**EXPERIMENT, "oven": {"heat": 200, "light": False}}
    assert changed(experiment=other) == set()
    assert ingredients(other).key != ingredients().key


@pytest.mark.parametrize(
    "change", [{"versions": {"python": "4"}}, {"device": {"cpu": "b"}}, {"code": {"passes": "1"}}, {"code": {}}]
)
def test_versions_device_and_code_change_every_key(change: dict[str, Any]) -> None:
    assert changed(**change) == {"knead", "bake", "taste"}


def test_the_order_of_versions_says_nothing() -> None:
    both = {"a": "1", "b": "2"}
    assert ingredients(versions=both).keys(ORDER) == ingredients(versions=dict(reversed(both.items()))).keys(ORDER)


def test_the_order_in_which_a_stage_names_what_it_reads_and_needs_says_nothing() -> None:
    def key(reads: tuple[str, ...], needs: tuple[str, ...]) -> str:
        class Last(Taste):
            pass

        Last.reads, Last.needs = reads, needs
        return ingredients().keys([*ORDER[:2], Last()])["taste"]

    one = key(("flour", "oven.heat"), ("knead", "bake"))
    assert key(("oven.heat", "flour"), ("bake", "knead")) == one
    assert len({one, key(("flour",), ("knead", "bake")), key(("flour", "oven.heat"), ("bake",))}) == 3


@frozen
class Recipe:
    flour: str
    steps: Mapping[str, Any]


def test_the_order_of_a_mapping_is_part_of_the_key() -> None:
    one = Recipe(flour="rye", steps={"a": {"name": "a"}, "b": {"name": "b"}})
    other = evolve(one, steps=dict(reversed(one.steps.items())))
    assert digest(one) != digest(other)
    assert digest(one) == digest(evolve(one))


def test_a_read_that_is_no_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown field 'oven.heat' @ reads of stage 'bake'"):
        ingredients({"flour": "rye", "oven": {}}).keys(ORDER)


@pytest.mark.parametrize("value", [object(), math.nan, math.inf, b"bytes", {"a": [object()]}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="@"):
        plain(value)


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(InvalidRequest, match=r"a object cannot be written as JSON @ a\[1\]"):
        plain({"a": [1, object()]})


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(trees)
def test_canonical_text_survives_a_journey_through_json(value: Any) -> None:
    assert json.loads(canonical(value)) == value
    assert canonical(json.loads(canonical(value))) == canonical(value)


@given(trees, trees)
def test_values_that_json_tells_apart_have_other_digests(a: Any, b: Any) -> None:
    assert (digest(a) == digest(b)) == (json.dumps(a) == json.dumps(b))


def test_where_a_source_file_lies_does_not_matter_and_what_it_says_does(tmp_path: Path) -> None:
    for folder, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(text)
    a, b, c = (code_digests(files=[tmp_path / folder / "model.py"]) for folder in "abc")
    assert a == b != c
    assert set(a) == {"model.py"}
    assert set(code_digests(files=[tmp_path / "a" / "model.py", tmp_path / "c" / "model.py"])) == {
        "model.py",
        "model.py#2",
    }


def test_every_source_of_a_package_counts_and_no_compiled_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shed"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "inner" / "table.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = code_digests(["shed"])
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_text("compiled")
    assert code_digests(["shed"]) == before
    (package / "inner" / "table.json").write_text("[]")
    after = code_digests(["shed"])
    assert after != before
    (package / "inner" / "table.json").rename(package / "inner" / "other.json")
    assert code_digests(["shed"]) != after


def test_a_module_is_digested_by_its_one_file() -> None:
    assert set(code_digests(["airflow_free.keys", "airflow_free.executors"])) == {
        "airflow_free.keys", "airflow_free.executors",
    }  # fmt: skip


def test_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no module named 'airflow_free\.nothing'"):
        code_digests(["airflow_free.nothing"])
    with pytest.raises(InvalidRequest, match=r"gone\.py is gone"):
        code_digests(files=[tmp_path / "gone.py"])
