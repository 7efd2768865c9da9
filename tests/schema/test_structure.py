from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.schema.options import option
from npucompose.schema.structure import structure


@frozen(kw_only=True)
class Inner:
    size: int
    names: tuple[str, ...] = ()


@frozen(kw_only=True)
class Own:
    text: str

    @classmethod
    def of_tree(cls, tree: Any, path: str) -> Own:
        if tree == "bad":
            raise ConfigError(f"first wrong @ {path}", f"second wrong @ {path}")
        return cls(text=f"made of {tree}")


@frozen(kw_only=True)
class Outer:
    must: str
    count: int = option(1, ge=1)
    rate: float = option(0.5, gt=0, le=1)
    flag: bool = False
    color: Literal["red", "green"] = option("red", choices=("red", "green"))
    maybe: int | None = option(None, ge=0, optional=True)
    pair: tuple[int, int] = (0, 0)
    inner: Inner = option(factory=lambda: Inner(size=1))
    inners: Mapping[str, Inner] = option(factory=dict)
    dims: Mapping[str, tuple[int, ...]] = option(factory=dict)
    own: Own | None = None
    mixed: int | str = 0
    secret: int = option(7, from_experiment="seed")


CASES: list[tuple[Any, list[str]]] = [
    ({}, ["'must' is missing @ at: it has no default"]),
    ([], ["'at' must be a mapping: []"]),
    (None, ["'at' must be a mapping: null"]),
    ({"must": "a", "cuont": 2}, ["unknown key 'cuont' @ at. Did you mean 'count'? Choices: must, count, "]),
    ({"must": 1}, ["'must' must be text: 1 @ at"]),
    ({"must": None}, ["'must' must be text: null @ at"]),
    ({"must": ["a"]}, ["'must' must be text: ['a'] @ at"]),
    ({"must": "a", "count": True}, ["'count' must be an integer: true @ at"]),
    ({"must": "a", "count": "1"}, ["'count' must be an integer: '1' @ at"]),
    ({"must": "a", "count": 1.0}, ["'count' must be an integer: 1.0 @ at"]),
    ({"must": "a", "count": 0}, ["'count' must be >= 1: 0 @ at"]),
    ({"must": "a", "rate": 2}, ["'rate' must be <= 1: 2.0 @ at"]),
    ({"must": "a", "flag": 1}, ["'flag' must be true or false: 1 @ at"]),
    ({"must": "a", "color": "gren"}, ["'color' must be one of red, green: 'gren' @ at. Did you mean 'green'?"]),
    ({"must": "a", "maybe": "x"}, ["'maybe' must be an integer or null: 'x' @ at"]),
    ({"must": "a", "maybe": -1}, ["'maybe' must be >= 0: -1 @ at"]),
    ({"must": "a", "pair": [1]}, ["'pair' must be a list of 2: [1] @ at"]),
    ({"must": "a", "pair": "ab"}, ["'pair' must be a list: 'ab' @ at"]),
    (
        {"must": "a", "inner": {"names": [1, "b", 2]}},
        ["'names[0]' must be text: 1", "'names[2]'", "'size' is missing @ at.inner"],
    ),
    (
        {"must": "a", "inners": {"x": {"size": "s"}, "y": 3}},
        ["'size' must be an integer: 's' @ at.inners.x", "'inners.y' must be a mapping: 3 @ at"],
    ),
    ({"must": "a", "dims": {"x": [0, "z"]}}, ["'dims.x[1]' must be an integer: 'z' @ at"]),
    ({"must": "a", "dims": {3: [0]}}, ["'dims' must be a mapping whose keys are each text: 3 @ at"]),
    ({"must": "a", "own": "bad"}, ["first wrong @ at.own", "second wrong @ at.own"]),
    ({"must": "a", "mixed": 1.5}, ["'mixed' must be an integer or text: 1.5 @ at"]),
    ({"must": "a", "secret": 1}, ["'secret' @ at comes from the experiment's 'seed': set that, not this"]),
]


@pytest.mark.parametrize(("tree", "words"), CASES)
def test_a_mistake_is_told_with_its_path_its_value_and_what_is_possible(tree: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Outer, tree, "at")
    for word in words:
        assert any(word in problem for problem in caught.value.problems), caught.value.problems


def test_every_mistake_is_told_at_once_also_where_a_check_and_a_type_fail_together() -> None:
    tree = {"must": 1, "count": 0, "rate": -1, "color": "blue", "inner": {"size": None}, "zzz": 1}
    with pytest.raises(ConfigError) as caught:
        structure(Outer, tree, "at")
    assert len(caught.value.problems) == 6


def test_a_right_tree_becomes_a_typed_value() -> None:
    tree = {
        "must": "a", "rate": 1, "inner": {"size": 2, "names": ["x"]}, "inners": {"k": {"size": 3}},
        "dims": {"x": [0, 1]}, "pair": [4, 5], "own": "fine", "mixed": "t",
    }  # fmt: skip
    value = structure(Outer, tree, "at", engine={"seed": 9})
    assert value == Outer(
        must="a", rate=1.0, inner=Inner(size=2, names=("x",)), inners={"k": Inner(size=3)}, dims={"x": (0, 1)},
        pair=(4, 5), own=Own(text="made of fine"), mixed="t", secret=9,
    )  # fmt: skip
    assert type(value.rate) is float


def test_a_value_that_is_already_built_is_taken_as_it_is() -> None:
    inner = Inner(size=5)
    assert structure(Outer, {"must": "a", "inner": inner}).inner is inner


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["a", "red", "1", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "names", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [f.name for f in attrs.fields(Outer)]


@given(st.dictionaries(st.sampled_from([*FIELDS, "other"]), plain, max_size=6))
def test_any_tree_is_either_refused_in_words_or_read_without_loss(tree: dict[str, Any]) -> None:
    value, problems = read(tree)
    assert (value is None) == bool(problems)
    assert all("@ at" in problem for problem in problems)
    for key, raw in tree.items():
        if value is not None and isinstance(raw, (str, int, float)) and key != "own":
            assert getattr(value, key) == raw
            assert type(getattr(value, key)) in (type(raw), float)


def read(tree: Any) -> tuple[Outer | None, tuple[str, ...]]:
    try:
        return structure(Outer, tree, "at"), ()
    except ConfigError as error:
        return None, error.problems


def test_mistakes_in_different_fields_never_hide_each_other() -> None:
    wrong = {"must": 1, "count": "x", "flag": "no", "pair": 3}
    alone = [problem for key, raw in wrong.items() for problem in read({"must": "a", key: raw})[1]]
    assert len(alone) == len(wrong)
    assert list(read(wrong)[1]) == alone


def test_reading_a_tree_loads_no_torch() -> None:
    code = "import sys, npucompose.schema.structure, npucompose.schema.experiment; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@frozen(kw_only=True)
class Asked:
    when: Literal[True, "auto", 2] = "auto"


@pytest.mark.parametrize("value", [1, 1.0, 2.0, "true", "2", None])
def test_one_of_some_values_is_meant_with_its_type(value: Any) -> None:
    with pytest.raises(ConfigError, match="'when' must be one of true, auto, 2"):
        structure(Asked, {"when": value}, "at")


@pytest.mark.parametrize("value", [True, "auto", 2])
def test_one_of_some_values_is_taken(value: Any) -> None:
    assert structure(Asked, {"when": value}, "at").when is value
