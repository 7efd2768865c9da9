"""Whether rows that hold nobody's request reach those that do: what the stage `padding` found. Knows no torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Garbage = Literal["noise", "nan", "huge"]
"""What the rows beyond the real ones hold: other values of the same input; NaN, and the largest finite numbers of the
type with either sign, where the input holds floating-point numbers (noise elsewhere)."""


@frozen(kw_only=True)
class PaddingCheck:
    """One way of calling the model with one kind of garbage, compared bit for bit in the real rows."""

    way: Literal["eager", "compiled"]
    garbage: Garbage
    changed: tuple[str, ...] = ()
    """Results whose real rows changed: `result[0]: 3 of 8 rows`."""

    @property
    def passed(self) -> bool:
        return not self.changed


@frozen(kw_only=True)
class PaddingReader:
    """The operator by which padding first gets into real rows: with those as they were, results are right."""

    operator: str
    """`aten.mean.dim`."""
    source: str | None = None
    """The line of the model that called it."""
    garbage: Garbage

    @property
    def words(self) -> str:
        return f"{self.operator}{f' at {self.source}' if self.source else ''} ({self.garbage})"


@frozen(kw_only=True)
class PaddingFacts:
    rows: int
    """Of the inputs that were padded, in their first dimension."""
    real: int
    inputs: tuple[str, ...]
    checks: tuple[PaddingCheck, ...]
    readers: tuple[PaddingReader, ...] = ()
    """In the model's own code, eager; empty where only the compiled model reads padding."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def words(self) -> str:
        """`padding of 4 of 8 rows is not read (eager, compiled; noise, nan, huge)`, or who reads it."""
        if self.passed:
            ways = ", ".join(dict.fromkeys(check.way for check in self.checks))
            kinds = ", ".join(dict.fromkeys(check.garbage for check in self.checks))
            return f"padding of {self.rows - self.real} of {self.rows} rows is not read ({ways}; {kinds})"
        failed = [check for check in self.checks if not check.passed]
        if self.readers:
            return f"padding is read by {', '.join(one.words for one in self.readers)}"
        return "padding is read: " + "; ".join(f"{c.way}, {c.garbage}: {c.changed[0]}" for c in failed)
