"""What Hydra's grammar takes only within quotes is refused with words that say so."""

from __future__ import annotations

from typing import Any

import pytest

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
    ],
)
def test_a_letter_that_needs_quotes_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed_overrides([text])
    assert str(refused.value).startswith(f"'{text}' is not an override: {reason}")


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
