"""Sizes of a batch as an engine's configuration lists them."""

from __future__ import annotations

from typing import Any, cast

from npucompose.errors import ConfigError
from npucompose.vendor.option_specs import shown


def whole_sizes(name: str, said: Any) -> list[int]:
    """Ascending, each once; ConfigError for anything but whole numbers above 0, one or a list of them."""
    values = cast("list[Any]", said if isinstance(said, list) else [said])
    if not all(type(value) is int and value > 0 for value in values):
        raise ConfigError(f"{name}={shown(said)[:100]}: sizes are whole numbers above 0.")
    return sorted(set(values))
