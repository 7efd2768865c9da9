"""What each pass is worth: report.json's `ablation`. Knows no torch."""

from __future__ import annotations

from attrs import frozen

from npucompose.schema.timing import Timing

ALL = "all passes"
"""The name of the experiment's own list, with which the others are compared."""


@frozen(kw_only=True)
class Variant:
    """The experiment with some of its passes."""

    name: str
    """`all passes`, `without cse`, `up to cse`, `no pass`."""
    passes: tuple[str, ...]
    nodes: int | None = None
    """Of all graphs after their passes."""
    kernels: int | None = None
    """Calls of one replay; None where nothing is recorded."""
    passes_s: float | None = None
    passed: bool
    """Results equal eager's as the contracts of these passes promise. What does not pass is not timed."""
    bitwise: bool = False
    max_abs_err: float | None = None
    problem: str | None = None
    """Why it could not be compiled, or what differs."""
    timing: Timing | None = None
    ratio: float | None = None
    """Its time by that of all passes, round by round: above 1 it takes longer."""


@frozen(kw_only=True)
class AblationFacts:
    variants: tuple[Variant, ...]
    """All passes first."""
