"""How many tokens vLLM's scheduler put into each step, as a trace for `npucompose sizes plan`.

Imports nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError, path_error
from npucompose_vllm.recipe import STEPS, path_of


class StepTrace:
    """A CSV with a line for each step, whole after every step: an engine may be killed at any time."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise path_error(error) or ConfigError(f"additional_config.{STEPS}: {error}") from None
        self._file.write("tokens\n")

    def came(self, tokens: int) -> None:
        if tokens > 0:
            self._file.write(f"{tokens}\n")


def trace_of(additional_config: Any) -> StepTrace | None:
    """The trace that `additional_config` asks for, whose file is begun anew; None where it asks for none."""
    place = asked(additional_config)
    return None if place is None else StepTrace(place)


def asked(additional_config: Any) -> Path | None:
    place = additional_config.get(STEPS) if isinstance(additional_config, Mapping) else None
    return None if place is None else Path(path_of(f"additional_config.{STEPS}", place, "a CSV file to write"))
