"""Which operator of a graph's dump is which one of the eager dump: by name, or as the nth call of its operator."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from npucompose.results.artefacts import DumpedOperator


@frozen(kw_only=True)
class Pairs:
    pairs: tuple[tuple[DumpedOperator, DumpedOperator], ...]
    """(eager, graph), in the order of the graph."""
    only_eager: tuple[DumpedOperator, ...]
    only_graph: tuple[DumpedOperator, ...]
    by_name: int
    """Of the pairs; the others are the nth calls of their operator, of which both have as many."""


def paired(eager: Sequence[DumpedOperator], graph: Sequence[DumpedOperator]) -> Pairs:
    """A name counts only where both have the same operator under it."""
    named = {one.name: one for one in eager}
    found: dict[str, DumpedOperator] = {}
    for one in graph:
        other = named.get(one.name)
        if other is not None and operator_name(other) == operator_name(one):
            found[one.name] = other
    by_name = len(found)
    taken = {one.name for one in found.values()}
    left = _by_operator([one for one in eager if one.name not in taken])
    for operator, calls in _by_operator([one for one in graph if one.name not in found]).items():
        if len(left.get(operator, ())) == len(calls):
            found.update({one.name: other for one, other in zip(calls, left[operator], strict=True)})
    taken = {one.name for one in found.values()}
    return Pairs(
        pairs=tuple((found[one.name], one) for one in graph if one.name in found),
        only_eager=tuple(one for one in eager if one.name not in taken),
        only_graph=tuple(one for one in graph if one.name not in found),
        by_name=by_name,
    )


def operator_name(one: DumpedOperator) -> str:
    """`aten.mm.default` and `mm` are one: "mm"."""
    parts = one.operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _by_operator(operators: Sequence[DumpedOperator]) -> dict[str, list[DumpedOperator]]:
    found: dict[str, list[DumpedOperator]] = {}
    for one in operators:
        found.setdefault(operator_name(one), []).append(one)
    return found
