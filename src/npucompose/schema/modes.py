"""Which mode won: report.json's `modes`. Knows no torch and no clock."""

from __future__ import annotations

from attrs import frozen

from npucompose.schema.timing import Candidate, Timing


@frozen(kw_only=True)
class Behind:
    """Times of one mode by those of the fastest, round by round: above 1 it takes longer."""

    ratio: float
    """The median."""
    low: float
    """The quartiles: a quarter of the rounds lies below `low`, a quarter above `high`."""
    high: float


@frozen(kw_only=True)
class ModeTime:
    """The experiment in one mode, everything else as it is."""

    mode: str
    candidate: Candidate | None = None
    """Whose samples these are: `replay` where there is a detached handle."""
    compile_s: float | None = None
    """What the first call compiled for."""
    passed: bool
    """Results equal eager's as far as the mode promises. What does not pass is not timed and cannot win."""
    bitwise: bool = False
    max_abs_err: float | None = None
    problem: str | None = None
    """Why it could not be compiled, or what differs."""
    idle: tuple[str, ...] = ()
    """Options of the experiment that do not act in this mode."""
    timing: Timing | None = None
    behind: Behind | None = None
    """None for the fastest, and for what was not timed."""


@frozen(kw_only=True)
class ModeFacts:
    fastest: str | None
    """The mode with the least time; None where nothing was timed."""
    won: bool
    """The fastest is faster than every other by more than the spread: in three rounds of four, of 20 or more."""
    modes: tuple[ModeTime, ...]
    """The experiment's own mode first, eager last."""
