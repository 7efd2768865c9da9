"""What one pass did to one graph: a line of report.json's `passes`. Knows no graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs
from attrs import frozen


@frozen(kw_only=True)
class RuleFacts:
    """What one adaptation rule did to one graph."""

    rule: str
    kind: str
    op: str
    matches: int
    casts: int = 0
    """Casts that it put in."""
    permutes: int = 0
    """Permutes that it put in."""
    unchecked: int = 0
    """Casts whose range its contract wants checked, in a mode that cannot check at run time."""
    rtol: float = 0.0
    atol: float = 0.0
    """Its contract; both 0 is bitwise."""
    max_abs_err: float | None = None
    """The largest difference of one application, on random inputs (`check=per_pass`); None: nothing was checked."""
    way: str = ""
    """Of a pattern: `register_replacement` where TorchAir replaced it; '' where the pass did."""


def rules_together(runs: Iterable[tuple[RuleFacts, ...]]) -> tuple[RuleFacts, ...]:
    """What each rule did to all graphs of a run: counts added, the largest error; in the order first met."""
    found: dict[str, RuleFacts] = {}
    for rule in (rule for rules in runs for rule in rules):
        known = found.get(rule.rule)
        found[rule.rule] = rule if known is None else _added(known, rule)
    return tuple(found.values())


def _added(one: RuleFacts, other: RuleFacts) -> RuleFacts:
    errors = [error for error in (one.max_abs_err, other.max_abs_err) if error is not None]
    return attrs.evolve(
        one,
        matches=one.matches + other.matches,
        casts=one.casts + other.casts,
        permutes=one.permutes + other.permutes,
        unchecked=one.unchecked + other.unchecked,
        max_abs_err=max(errors, default=None),
    )


@frozen(kw_only=True)
class FoldFacts:
    """What became constants of the graph."""

    parameters: tuple[str, ...]
    """Placeholders of the parameters that were folded."""
    bytes: int
    """Memory of the constants, beside that of the parameters."""


@frozen(kw_only=True)
class MoveFacts:
    """Permutes and casts of one graph before and after those that undo each other were taken out."""

    permutes_before: int
    permutes_after: int
    casts_before: int
    casts_after: int
    bytes_before: int
    bytes_after: int
    """Bytes read and written by permutes, copies and casts; symbols count with their hints."""


@frozen(kw_only=True)
class PassRecord:
    """`PassRecord(name="cse", stage="pre", matches=2, nodes_before=9, nodes_after=7, seconds=0.0004, exact=True)`."""

    name: str
    """The label in YAML; the pass's own name where the label says nothing else."""
    stage: Literal["pre", "post"]
    matches: int
    nodes_before: int
    nodes_after: int
    seconds: float
    exact: bool
    """The results of this graph keep their bits."""
    rtol: float = 0.0
    atol: float = 0.0
    """Where they do not: how far off the contracts of what was applied let them be; both 0 where nothing says."""
    rules: tuple[RuleFacts, ...] = ()
    moves: MoveFacts | None = None
    folds: FoldFacts | None = None
    max_abs_err: float | None = None
    """The largest difference that check=per_pass saw; None where nothing was checked."""

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)
