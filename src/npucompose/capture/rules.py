"""The rules of a capture as data (`rules.yaml`): what is forbidden, the runtime's code, the fix, the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.input_safety import load_yaml
from npucompose.table.options import option
from npucompose.table.structure import structure

FILE = Path(__file__).with_name("rules.yaml")


@frozen(kw_only=True)
class CaptureRule:
    """One row: `CaptureRule(code=107027, forbids="the host reads …", fix="torch.where(…)", sources=("…",))`."""

    code: int | None
    """What the runtime answers; None where somebody refuses before the runtime is asked."""
    forbids: str
    fix: str
    sources: tuple[str, ...]
    relaxed: bool = True
    """The rule holds under capture_error_mode=relaxed too."""


@frozen(kw_only=True)
class CaptureRules:
    """The table: `rules().of("host_read").code` is 107027."""

    version: int
    rules: Mapping[str, CaptureRule] = option(factory=dict)

    def of(self, name: str) -> CaptureRule:
        """The row of that name; ConfigError where there is none."""
        if name not in self.rules:
            raise ConfigError(unknown("capture rule", name, tuple(self.rules)))
        return self.rules[name]


@cache
def rules() -> CaptureRules:
    """The table of this version."""
    return structure(CaptureRules, load_yaml(FILE), "capture/rules.yaml")
