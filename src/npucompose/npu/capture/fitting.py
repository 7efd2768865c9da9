"""The most sizes whose captures fit together, exact: of what each takes, and how much there is of each resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Amounts = tuple[float, ...]
"""Of each resource, in one order."""


class _Choice(NamedTuple):
    taken: Amounts
    sizes: tuple[int, ...]
    """The largest first."""


def largest_set(costs: Mapping[int, Amounts], limits: Amounts) -> tuple[int, ...]:
    """As many of the sizes as fit, the largest among them, ascending; empty where not even that one fits.

    Of sets of equal number the one that takes least of the first resource, then of the next; of those the larger sizes.
    `largest_set({1: (2,), 8: (3,), 64: (4,)}, (7,))` is `(1, 64)`. A larger size serves a smaller step too, so that the
    largest is worth more than any other: without it the largest steps run without a recording.
    """
    if not costs:
        return ()
    if len(set(costs.values())) == 1 or _fits(_sum(list(costs.values())), limits):  # as sizes without bytes are
        return _first_that_fit(costs, limits)
    largest, *smaller = sorted(costs, reverse=True)
    start = _Choice(costs[largest], (largest,))
    if not _fits(start.taken, limits):
        return ()
    by_number = [[start]]
    for size in smaller:
        longer = [[_more(choice, size, costs[size]) for choice in choices] for choices in by_number]
        fitting = [[choice for choice in choices if _fits(choice.taken, limits)] for choices in longer]
        joined = [[*a, *b] for a, b in zip([*by_number, []], [[], *fitting], strict=True)]
        by_number = [_undominated(choices) for choices in joined]
        by_number = [choices for choices in by_number if choices]
    return tuple(sorted(min(by_number[-1], key=_order).sizes))


def _first_that_fit(costs: Mapping[int, Amounts], limits: Amounts) -> tuple[int, ...]:
    """The largest sizes, until one does not fit: where all cost the same, or all fit, nothing is better."""
    found, taken = list[int](), tuple(0.0 for _ in limits)
    for size in sorted(costs, reverse=True):
        taken = _sum((taken, costs[size]))
        if not _fits(taken, limits):
            break
        found.append(size)
    return tuple(reversed(found))


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))


def _fits(taken: Amounts, limits: Amounts) -> bool:
    return all(amount <= limit for amount, limit in zip(taken, limits, strict=True))


def _more(choice: _Choice, size: int, cost: Amounts) -> _Choice:
    return _Choice(_sum((choice.taken, cost)), (*choice.sizes, size))


def _undominated(choices: Sequence[_Choice]) -> list[_Choice]:
    """Without those that another one makes needless: as many sizes, and no more of anything."""
    kept: list[_Choice] = []
    for choice in sorted(choices, key=_order):
        if not any(_fits(other.taken, choice.taken) for other in kept):
            kept.append(choice)
    return kept


def _order(choice: _Choice) -> tuple[Amounts, tuple[int, ...]]:
    return choice.taken, tuple(-size for size in choice.sizes)
