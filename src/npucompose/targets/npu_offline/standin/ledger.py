"""What a device was told, in order: counts for the report, lines for a person. Loads no torch."""

from __future__ import annotations

from collections import Counter

from attrs import define, field


@define(kw_only=True, eq=False)
class Ledger:
    """`ledger.note("replay", "graph 2")` appends one line and counts one replay."""

    counts: Counter[str] = field(factory=Counter)
    lines: list[str] = field(factory=list)

    def note(self, what: str, details: str = "") -> None:
        self.counts[what] += 1
        self.lines.append(f"{what} {details}".rstrip())
