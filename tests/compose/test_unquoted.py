"""What Hydra's grammar takes only within quotes is refused with words that say so."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.compose.overrides import parsed_overrides, words
from npucompose.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model=größe", "'ö' must stand in quotes, as in \"model='größe'\"."),
        ("k=a&b", "'&' must stand in quotes, as in \"k='a&b'\"."),
        ("k={a: é}", "'é' must stand in quotes."),
        ("größe=1", "no key has a 'ö'."),
        ("k=\"x'é", "a quote is not closed."),
        ("k='größe", "a quote is not closed."),
        ("k=it's", "a quote is not closed."),
        ('x={"a": [0]}', "the keys of a mapping stand without quotes, as in x={a: [0]}."),
        ('x=[{"a":{"b":1}}]', "the keys of a mapping stand without quotes, as in x=[{a:{b:1}}]."),
        ('x={"a b": 1}', "a key of a mapping cannot stand in quotes"),
        ("x={a=1, b: 2}", "a mapping is written with ':', as in x={a: 1, b: 2}."),
        ("x={1}", "a mapping is {name: value}, and a list [value]."),
        ("k=epoch=9-step=8", "'=' must stand in quotes, as in \"k='epoch=9-step=8'\"."),
        ("x=$(a)", "'(' must stand in quotes, as in \"x='$(a)'\"."),
        ("x='a'b", "such a text must stand in quotes."),
        ("x=a)", "')' closes nothing."),
        ("x={a: 1}}", "'}' closes nothing."),
        ("x=[1,]", "a value is missing beside ','."),
        ("mode=eager,", "a value is missing beside ','."),
        ("a b=1", "no key has a ' '."),
        ('{"mode": "eager"}', "no key has a '{'."),
        ("=1", "it names no key."),
        ("~", "it names no key."),
        ("+", "it names no key."),
        ("seed=int(x)", "int(…) does not take these arguments."),
        ("seed=range(a)", "range(…) does not take these arguments."),
    ],
)
def test_a_letter_that_needs_quotes_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed_overrides([text])
    assert str(refused.value).startswith(f"'{text}' is not an override: {reason}")


@given(st.text(alphabet="ax=1,:[]{}()$ .~+@/'" + chr(34) + chr(92), min_size=1, max_size=12))
def test_no_word_of_the_parser_s_grammar_is_printed(text: str) -> None:
    said = ""
    try:
        parsed_overrides([text])
    except ConfigError as refused:
        said = str(refused)
    assert not re.search(r"expecting|viable|mismatched|extraneous|recognition|evaluating|EOF", said)


@pytest.mark.parametrize("text", ["x={a: 1}", "seed=range(1,3)"])
def test_without_assertions_what_cannot_be_read_is_refused_and_the_rest_is_read(text: str) -> None:
    code = (
        "from npucompose.compose.overrides import parsed_overrides\n"
        f"parsed_overrides(['mode=eager', 'seed=1,2', 'x=[1]', \"k='a(b'\"]); parsed_overrides([{text!r}])"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert f"'{text}' is not an override: Python runs without assertions (PYTHONOPTIMIZE, or python -O)" in done.stderr


@pytest.mark.parametrize("text", ["model='größe'", "k='a&b'", "k={a: 'é'}"])
def test_in_quotes_it_is_taken(text: str) -> None:
    (parsed,) = parsed_overrides([text])
    assert parsed.input_line == text


def test_what_hydra_says_of_a_missing_file_is_told_as_a_choice_and_nothing_else_is() -> None:
    missing: Any = RuntimeError("In 'config': Could not find 'mode/fast'\n\nConfig search path: …")
    missing.missing_cfg_file, missing.options = "mode/fast", ["eager", "max-autotune"]
    told = words(missing)
    assert told.startswith("unknown mode 'fast' @ a defaults list.")
    assert "eager, max-autotune" in told
    missing.missing_cfg_file = None
    assert words(missing).startswith("In 'config': Could not find 'mode/fast'")
