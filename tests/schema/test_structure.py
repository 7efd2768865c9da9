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
from npucompose.table.options import option
from npucompose.table.structure import classes_of, shown, structure


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
    code = "import sys, npucompose.table.structure, npucompose.schema.experiment; sys.exit('torch' in sys.modules)"
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


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"), (True, "true"), (False, "false"), ("a'b", '"a\'b"'), ([1, "x"], "[1, 'x']"),
        (2**63 - 1, "9223372036854775807"),
        (2**63, "a number of 64 bits"), (-(2**2000), "a number of 2,001 bits"), ("x" * 78, f"'{'x' * 78}'"),
        ("x" * 79, f"'{'x' * 76}..."),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_it_was_written_on_one_line(value: Any, words: str) -> None:
    assert shown(value) == words


@frozen(kw_only=True)
class Left:
    name: Literal["left"] = "left"
    size: int = 1


@frozen(kw_only=True)
class Right:
    name: Literal["right"] = "right"
    width: float = 1.0


@frozen(kw_only=True)
class Forms:
    side: Left | Right = option(factory=Left)
    maybe: Inner | None = None
    either: tuple[int, ...] | dict[str, int] | None = None
    rest: list[Any] = option(factory=list)
    table: dict[int, Any] = option(factory=dict)
    plain: tuple[Any, ...] = ()
    whole: Any = None


FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"side": {"width": 2, "name": "right"}}, {"side": Right(width=2.0)}),
    ({"side": {"size": 3}}, {"side": Left(size=3)}),
    ({"side": Right()}, {"side": Right()}),
    ({"maybe": None}, {"maybe": None}),
    ({"maybe": {"size": 2}}, {"maybe": Inner(size=2)}),
    ({"either": [1, 2]}, {"either": (1, 2)}),
    ({"either": {"a": 1}}, {"either": {"a": 1}}),
    ({"rest": (1, "a")}, {"rest": [1, "a"]}),
    ({"table": {1: "a"}}, {"table": {1: "a"}}),
    ({"plain": [1, None]}, {"plain": (1, None)}),
    ({"whole": {"a": [1]}}, {"whole": {"a": [1]}}),
]


@pytest.mark.parametrize(("tree", "fields"), FORMS)
def test_every_form_of_a_field_is_read(tree: dict[str, Any], fields: dict[str, Any]) -> None:
    value = structure(Forms, tree, "at")
    assert value == Forms(**fields)
    assert {name: type(getattr(value, name)) for name in fields} == {name: type(v) for name, v in fields.items()}


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"side": {"name": "top"}}, "'side' must be a mapping whose name is one of left, right: 'top' @ at"),
        ({"side": {"name": "rigt"}}, "'side' must be a mapping whose name is one of left, right: 'rigt' @ at. "
         "Did you mean 'right'?"),
        ({"side": [1]}, "'side' must be a mapping: [1] @ at"),
        ({"side": {"name": "right", "size": 1}}, "unknown key 'size' @ at.side. Choices: name, width."),
        ({"maybe": {"size": "a"}}, "'size' must be an integer: 'a' @ at.maybe"),
        ({"either": "a"}, "'either' must be a list or a mapping or null: 'a' @ at"),
        ({"rest": 1}, "'rest' must be a list: 1 @ at"),
        ({"table": [1]}, "'table' must be a mapping: [1] @ at"),
        ({"table": {True: 1}}, "'table' must be a mapping whose keys are each an integer: true @ at"),
        ({3: 1}, "unknown key '3' @ at. Choices: side, maybe, either, rest, table, plain, whole."),
    ],
)  # fmt: skip
def test_every_form_that_is_none_is_told(tree: dict[Any, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as found:
        structure(Forms, tree, "at")
    assert found.value.problems == (problem,)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63 - 1)])
def test_numbers_have_64_bits_and_are_finite(number: int) -> None:
    assert structure(Outer, {"must": "a", "mixed": number}).mixed == number
    for tree, words in (
        ({"count": 2**63}, "'count' must be an integer of 64 bits: a number of 64 bits"),
        ({"rate": 2**63}, "'rate' must be a number of at most 64 bits, and finite: a number of 64 bits"),
        ({"rate": float("nan")}, "'rate' must be a number of at most 64 bits, and finite: nan"),
        ({"rate": float("inf")}, "and finite: inf"),
    ):
        with pytest.raises(ConfigError, match=words):
            structure(Outer, {"must": "a", **tree})
    with pytest.raises(ConfigError, match="'must' must be an integer or text"):
        structure(Mixed, {"must": number * 2})


@frozen(kw_only=True)
class Mixed:
    must: int | str


def test_a_class_that_refuses_its_fields_together_says_so_at_its_place() -> None:
    for path, problem in (("at", "no pair @ at"), ("a.b", "no pair @ a.b"), ("", "no pair")):
        with pytest.raises(ConfigError) as found:
            structure(Pair, {"left": 1, "right": 2}, path)
        assert found.value.problems == (problem,)
    with pytest.raises(ConfigError) as inside:
        structure(Pairs, {"pairs": [{"left": 1, "right": 1}, {"left": 1, "right": 2}, 3]}, "at")
    assert inside.value.problems == ("no pair @ at.pairs[1]", "'pairs[2]' must be a mapping: 3 @ at")


@frozen(kw_only=True)
class Pair:
    left: int
    right: int

    def __attrs_post_init__(self) -> None:
        if self.left != self.right:
            raise ValueError("no pair")


@frozen(kw_only=True)
class Pairs:
    pairs: tuple[Pair, ...] = ()


def test_without_a_path_a_problem_names_its_key_alone() -> None:
    with pytest.raises(ConfigError) as found:
        structure(Inner, {"names": 1, "sise": 2})
    assert set(found.value.problems) == {
        "'size' is missing: it has no default", "'names' must be a list: 1",
        "unknown key 'sise'. Did you mean 'size'? Choices: size, names.",
    }  # fmt: skip


def test_what_the_engine_sets_comes_from_the_experiment() -> None:
    assert structure(Outer, {"must": "a"}, engine={"other": 3}).secret == 7
    assert structure(Outer, {"must": "a"}, engine={"seed": 0}).secret == 0
    made = Outer(must="b")
    assert structure(Outer, made, engine={"seed": 9}) is made


def test_the_classes_of_a_type_are_told_where_it_is_nothing_else() -> None:
    assert classes_of(Inner) == (Inner,)
    assert classes_of(Left | Right) == (Left, Right)
    assert classes_of(Inner | None) == classes_of(int) == classes_of(tuple[int, ...]) == ()
