"""Plain YAML: what it means, what is refused, within which limits."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.input_safety import TAG, InputLimits, plain_data


def test_limits_are_the_last_that_holds() -> None:
    limits = InputLimits(most_values=4, deepest=2, aliases=True)
    assert plain_data("[1, [2]]", "x", limits) == [1, [2]]
    for text in ("[1, 2, 3, 4]", "[1, 2, [3]]", "[&a 1, *a, *a, *a]"):
        with pytest.raises(ConfigError, match=r"x holds more than 4 values, its aliases written out\."):
            plain_data(text, "x", limits)
    with pytest.raises(ConfigError, match=r"x holds more than 4 values\."):
        plain_data("[1, 2, 3, 4]", "x", InputLimits(most_values=4, deepest=2, aliases=False))
    with pytest.raises(ConfigError, match="nested more than 2 deep"):
        plain_data("[[[]]]", "x", limits)
    assert plain_data("[&a [1], *a]", "x", InputLimits(most_values=5, deepest=2, aliases=True)) == [[1], [1]]
    with pytest.raises(ConfigError, match="more than 4 values"):
        plain_data("[&a [1], *a]", "x", limits)


WIDE = InputLimits(most_values=100, deepest=9, aliases=True)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[&a <<, *a]", ["<<", "<<"]),
        ("{a: &x {k: 1}, b: {<<: [*x, {k: 2, m: 3}], m: 4}}", {"a": {"k": 1}, "b": {"k": 1, "m": 4}}),
        ("{<<: {a: 1}, b: {c: 2}, d: 3}", {"a": 1, "b": {"c": 2}, "d": 3}),
        ("a: !!map {b: !!seq [1]}", {"a": {"b": [1]}}),
        ('a: "12"', {"a": "12"}),
        ("a: ''", {"a": ""}),
        ("a: !!float 1", {"a": 1.0}),
        ("-", [None]),
        ("a: 1_0", {"a": 10}),
        ("? a\n: - b", {"a": ["b"]}),
    ],
)
def test_yaml_is_read_as_it_is_meant(text: str, data: Any) -> None:
    found = plain_data(text, "x", WIDE)
    assert found == data
    assert repr(found) == repr(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!omap [1]", "x:1: the tag tag:yaml.org,2002:omap is not read: plain values only."),
        ("a: !!seq {b: 1}", "x:1: the tag tag:yaml.org,2002:seq is not read"),
        ("a: !mine 1", "x:1: the tag !mine is not read"),
        ("a:\n  b: &a 1\n  <<: [*a]", "x:3: the merge key << takes a mapping"),
        ("\n\na: [", "x:4 is not YAML: "),
        ("a: !!bool maybe", "x:1: 'maybe' is no bool that can be held."),
        ("a: !!int " + "x" * 41, "x:1: xxxxxxxxxxxx… (41 characters) is no int that can be held."),
        ("a: !!int " + "x" * 40, f"x:1: '{'x' * 40}' is no int that can be held."),
        ("a: \x01", "x is not YAML: "),
    ],
)
def test_yaml_that_is_not_plain_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plain_data(text, "x", WIDE)
    assert str(refused.value).startswith(words)


def test_scalars_are_resolved_by_the_rules_given() -> None:
    import re

    rules = {"o": [(TAG + "timestamp", re.compile("on")), (TAG + "bool", re.compile("on$"))]}
    assert plain_data("[on, one, 1]", "x", WIDE, rules) == [True, "one", "1"]
