"""Cases of traces of a server's steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npucompose_devtools.capture_sizes.trace import Trace
from tests.refusals.case import Case


def trace(content: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Trace:
        (folder / "trace.csv").write_text(content)
        return Trace.from_csv(folder / "trace.csv")

    return read


TRACE = "npucompose_devtools.capture_sizes.trace"
CASES = (
    Case(TRACE, "is no table", trace(f"1\n{'8' * 200_000}\n"), "is no table: field larger than", "Error: field"),
    Case(TRACE, "numbers of rows; at", trace("\n".join(map(str, range(1, 50_002)))), "at most 50,000 are read"),
    Case(TRACE, "has no step", trace("rows\n"), "has no step: a trace has a line for each"),
    Case(TRACE, "is no step", trace("1\neight\n"), "trace.csv:2: 'eight' is no step", "ValueError"),
    Case(TRACE, "is no step", trace("1\n8,9,10\n"), "trace.csv:2: '8,9,10' is no step"),
    Case(TRACE, "a step has from 1 to", trace("0\n"), "trace.csv:1: a step has from 1 to 1,000,000 rows"),
    Case(TRACE, "a step has from 1 to", trace("8,9999999999999\n"), "and a line at most 1,000,000,000,000 steps"),
)
