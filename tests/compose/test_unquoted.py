"""What Hydra's grammar takes only within quotes is refused with words that say so."""

from __future__ import annotations

import pytest

from npucompose.compose.overrides import parsed_overrides
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
