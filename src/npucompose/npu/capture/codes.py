"""The error codes of the runtime's public lists: name, what the runtime prints of each, what mends it. No torch.

`error_codes.json` is written by tools/read_error_codes.py from the runtime's headers, with commit and line; what mends
a code stands in `error_fixes.yaml`, and in `rules.yaml` for those of a capture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from attrs import evolve, frozen

from npucompose.input_safety import load_yaml
from npucompose.npu.capture.rules import rules
from npucompose.table.options import option
from npucompose.table.structure import structure

DATA = Path(__file__).with_name("error_codes.json")
FIXES = Path(__file__).with_name("error_fixes.yaml")


@frozen(kw_only=True)
class ErrorCode:
    """One code: `ErrorCode(name="ACL_ERROR_RT_STREAM_CAPTURED", at="include/…:48", says=("stream is captured",))`."""

    name: str
    at: str
    """File and line of the runtime that defines it."""
    says: tuple[str, ...] = ()
    """What the runtime prints of it, one sentence for each of its own reasons."""

    @property
    def means(self) -> str:
        """The runtime's first sentence; where it prints none, the words of its name."""
        words = self.name.removeprefix("ACL_ERROR_").removeprefix("RT_").removeprefix("GE_")
        return self.says[0] if self.says else words.replace("_", " ").lower()


@frozen(kw_only=True)
class ErrorCodes:
    """The public lists of one version of the runtime."""

    source: str
    commit: str
    date: str
    table: str
    """The file of what the runtime prints."""
    codes: Mapping[int, ErrorCode] = option(factory=dict)

    @property
    def version(self) -> str:
        """`hicann/runtime 681ef7610df1 (2026-08-22)`."""
        return f"{self.source} {self.commit[:12]} ({self.date})"

    def rules_of(self, code: int) -> tuple[str, ...]:
        """The rules of a capture that the code may mean, those that answer it first."""
        own = [name for name, rule in rules().rules.items() if rule.code == code]
        return (*own, *(name for name, rule in rules().rules.items() if code in rule.also))

    @property
    def sentences(self) -> Mapping[str, int]:
        """{what the runtime prints beside a code's number, or in its place: the code}."""
        return {one.words: one.code for one in _fixes().sentences}

    def fix_of(self, code: int) -> str:
        """What mends a code that no rule of a capture has: its own row, else that of its block."""
        fixes = _fixes()
        block = next(one for one in fixes.blocks if one.first <= code <= one.last)
        return fixes.codes.get(code, block.fix)


@frozen(kw_only=True)
class FixBlock:
    """Codes that one sentence is about."""

    first: int
    last: int
    fix: str


@frozen(kw_only=True)
class RuntimeSentence:
    """What the runtime prints where it returns a code, without its number."""

    words: str
    code: int
    source: str


@frozen(kw_only=True)
class ErrorFixes:
    """error_fixes.yaml, read."""

    blocks: tuple[FixBlock, ...]
    codes: Mapping[int, str] = option(factory=dict)
    sentences: tuple[RuntimeSentence, ...] = ()


@cache
def error_codes() -> ErrorCodes:
    """The lists that this version ships."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    rows = {
        int(code): structure(ErrorCode, row, f"error_codes.json: {code}") for code, row in data.pop("codes").items()
    }
    return evolve(structure(ErrorCodes, data, "capture/error_codes.json"), codes=rows)


@cache
def _fixes() -> ErrorFixes:
    data = load_yaml(FIXES)
    own = {int(code): fix for code, fix in data.pop("codes").items()}
    return evolve(structure(ErrorFixes, data, "capture/error_fixes.yaml"), codes=own)
