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
