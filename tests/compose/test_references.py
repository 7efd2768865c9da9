"""`${a.b}` is another value of the tree, followed without any resolver."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from npucompose.compose.references import escaped, resolved
from npucompose.errors import ConfigError


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ({"a": {"b": 3}, "c": "${a.b}"}, {"a": {"b": 3}, "c": 3}),
        ({"a": {"b": None}, "c": "${a}"}, {"a": {"b": None}, "c": {"b": None}}),
        ({"a": 1, "b": "${a} and ${a}"}, {"a": 1, "b": "1 and 1"}),
        ({"a": "${b}", "b": "${c}", "c": [1]}, {"a": [1], "b": [1], "c": [1]}),
        ({"a": [{"b": 5}], "c": "${a.0.b}", "d": "${a[0].b}"}, {"a": [{"b": 5}], "c": 5, "d": 5}),
        ({"a": {"b": 1, "c": "${.b}", "d": {"e": "${..b}"}}}, {"a": {"b": 1, "c": 1, "d": {"e": 1}}}),
        ({"a": "${b}", "b": {"c": 2}, "d": "${a.c}"}, {"a": {"c": 2}, "b": {"c": 2}, "d": 2}),
        ({"a": {"x": 7}, "b": "x", "c": "${a.${b}}"}, {"a": {"x": 7}, "b": "x", "c": 7}),
        ({"a": r"\${b}", "b": 1, "c": r"\\${b}"}, {"a": "${b}", "b": 1, "c": "\\1"}),
        ({"a": "$ {b} $b }", "b": 1}, {"a": "$ {b} $b }", "b": 1}),
        ({"max-autotune": 1, "a": "${max-autotune}"}, {"max-autotune": 1, "a": 1}),
    ],
)
def test_a_reference_is_followed_as_omegaconf_follows_it(tree: dict[str, Any], found: dict[str, Any]) -> None:
    assert resolved(tree) == found
    assert OmegaConf.to_container(OmegaConf.create(tree), resolve=True) == found


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": "${oc.env:HOME}"}, "a='${oc.env:HOME}': it uses a resolver"),
        ({"a": "oc.env", "b": "${${a}:HOME}"}, "b='${${a}:HOME}': it uses a resolver"),
        ({"a": "oc.env:HOME", "b": "${${a}}"}, "b refers to ${oc.env:HOME}, which is no place"),
        ({"a": "${b"}, "its ${ is not followed by a }"),
        ({"a": "${}"}, "a refers to ${}, which is no place"),
        ({"a": "${b.c}", "b": 1}, "a refers to ${b.c}, and there is no such value."),
        ({"a": "${a}"}, "a refers to itself: a -> a."),
        ({"a": {"b": "${a}"}}, "a refers to itself"),
        ({"a": "x ${b}", "b": {"c": 1}}, "a is text and refers to a mapping or a list inside of it."),
        ({f"a{n}": f"${{a{n + 1}}}" for n in range(3000)} | {"a3000": 1}, "from one to the next too often"),
    ],
)
def test_what_cannot_be_followed_is_refused(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(tree)
    assert words in str(refused.value)


@given(st.text(alphabet="\\${}ab.:", max_size=12))
def test_escaped_text_comes_out_of_omegaconf_as_it_went_in(text: str) -> None:
    tree = {"a": text, "b": [{"c": text}]}
    assert OmegaConf.to_container(OmegaConf.create(escaped(tree)), resolve=True) == tree


def test_a_text_and_a_tree_may_grow_to_their_last_character_and_value() -> None:
    half = "x" * 500_000
    assert len(resolved({"a": half, "b": "${a}${a}"})["b"]) == 1_000_000
    with pytest.raises(ConfigError, match="b has more than 1,000,000 characters"):
        resolved({"a": half, "b": "${a}${a}y"})
    thousand = [0] * 999  # and the list itself
    assert len(resolved({"a": thousand, "b": ["${a}"] * 199 + [0] * 999})["b"]) == 199 + 999
    with pytest.raises(ConfigError, match="b holds more than 200,000 values"):
        resolved({"a": thousand, "b": ["${a}"] * 199 + [0] * 1000})
    with pytest.raises(ConfigError, match="b holds more than 200,000 values"):
        resolved({"a": thousand, "b": {n: "${a.0}" if n == "first" else "${a}" for n in ["first", *range(200)]}})


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        ({"x": {"a": {"b": "${..c}"}, "c": 1}, "c": 2}, 1),
        ({"x": {"a": {"b": "${...c}"}, "c": 1}, "c": 2}, 2),
        ({"x": {"a": {"b": "${....c}"}}, "c": 2}, 2),
        ({"x": {"a": {"b": "${.....c}"}}, "c": 2}, 2),
        ({"x": {"a": {"b": "${ c }"}}, "c": 2}, 2),
        ({"x": {"a": {"b": "${c.1.d}"}}, "c": [0, "${e}"], "e": {"d": 7}}, 7),
        ({"x": {"a": {"b": "${c.d[0]}"}}, "c": "${e}", "e": {"d": [8, 9]}}, 8),
        ({"x": {"a": {"b": "${c.3}"}}, "c": {3: 9}}, 9),
        ({"x": {"a": {"b": "${c.3}"}}, "c": {"3": 9, 3: 8}}, 9),
        ({"x": {"a": {"b": "${c}-${c}"}}, "c": None}, "None-None"),
    ],
)
def test_a_reference_finds_its_place(tree: dict[str, Any], value: Any) -> None:
    assert resolved(tree)["x"]["a"]["b"] == value


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": [1], "b": "${a.1}"}, "b refers to ${a.1}, and there is no such value."),
        ({"a": {"c": [0]}, "b": "${a.c.x}"}, "b refers to ${a.c.x}, and"),
        ({"a": "text", "b": "${a.0}"}, "b refers to ${a.0}, and"),
        ({"a": {1: 2}, "b": "${a.0000000001}"}, "there is no such value"),
        ({"a": {"b": {"c": "${.d}"}}}, "a.b.c refers to ${.d}, and"),
        ({"a": [1], "b": "${a}x"}, "b is text and refers to a mapping or a list inside of it."),
        ({"a": {"b": "${c}"}, "c": "${d}", "d": "${a.b}"}, "a -> a.b -> c -> d -> a.b"),
        ({"a": "${b:}"}, "it uses a resolver"),
        ({"a": "${" + "b" * 80 + " c}"}, "b" * 60 + "}, which is no place"),
    ],
)
def test_a_reference_that_finds_none_is_told_with_both(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(tree)
    assert words in str(refused.value)


def test_what_is_found_is_the_value_itself_and_the_tree_stays() -> None:
    tree = {"a": {"b": [1]}, "c": "${a}", "d": {"e": ("x", 1)}}
    found = resolved(tree)
    assert found["c"] is found["a"]
    assert found["d"] == {"e": ("x", 1)}
    assert tree["c"] == "${a}"
    assert escaped({"a": ["${b}", 3, {"c": "\\${d}"}]}) == {"a": ["\\${b}", 3, {"c": "\\\\\\${d}"}]}
