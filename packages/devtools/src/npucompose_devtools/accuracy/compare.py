"""The comparison: in the graph's order, inputs and results of each pair, until one result is beyond its contract.

A result within its contract may hand a difference on. So an operator's inputs are looked at too: `first` says whether
they were the same bits, within tolerance, or not dumped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from attrs import evolve, field, frozen

from npucompose.measure.numerics import compare
from npucompose.results.artefacts import DumpedOperator, DumpedValue, FxListing, Tensors, listed_nodes
from npucompose.results.measured import EXACT, NumericTolerance, tolerance_of
from npucompose.schema.adapt import Rewriting, RuleSet

Allowed = Callable[[str], NumericTolerance]
"""Of a dtype."""
Agreement = Literal["same bits", "within", "beyond", "statistics agree", "not dumped", "another shape"]
_RANK: tuple[Agreement, ...] = ("not dumped", "same bits", "statistics agree", "within", "another shape", "beyond")
ORDER = ("float64", "float32", "float16", "bfloat16", "float8")
"""Of dtypes, the exact ones first."""
GOOD = ("same bits", "within", "statistics agree", "not dumped")


@frozen(kw_only=True)
class OperatorResult:
    """One operator of the graph beside the eager one."""

    name: str
    eager: str
    operator: str
    results: Agreement
    inputs: Agreement
    error: float | None = None
    """The largest difference of a result; None where there is no finite one."""
    rtol: float = 0.0
    atol: float = 0.0
    problems: tuple[str, ...] = ()
    source: str | None = None
    made_by: str | None = None
    """The first listing that has the node, where it is not in the first of all: the pass that made it."""


@frozen(kw_only=True)
class DumpComparison:
    eager: str
    graph: str
    pairs: int
    by_name: int
    compared: int
    """Operators up to the first beyond its contract, that one included; without it all pairs."""
    agreements: Mapping[str, int] = field(factory=dict[str, int])
    """{`same bits`: how many of these}."""
    first: OperatorResult | None = None
    largest: OperatorResult | None = None
    """The one before it, or of all, whose results are within their contract and used the most of it."""
    only_eager: tuple[str, ...] = ()
    only_graph: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.first is None


@frozen(kw_only=True)
class Question:
    """What two dumps are compared under."""

    rules: Mapping[str, NumericTolerance] = field(factory=dict[str, NumericTolerance])
    """{operator: what a rule of adaptation allows}."""
    listings: tuple[FxListing, ...] = ()
    """FX graphs of the graph's compilation, in the order of its passes."""
    dtype: str | None = None
    """Of what lies in the dumps as float32: numpy has no bfloat16."""


def compared(eager: Tensors, graph: Tensors, question: Question) -> DumpComparison:
    """Up to the first operator of the graph whose result is beyond its contract."""
    pairs = paired(eager.operators, graph.operators)
    known = {node.name: node for node in listed_nodes(question.listings)}
    agreements: dict[str, int] = {}
    first: OperatorResult | None = None
    largest: OperatorResult | None = None
    for theirs, ours in pairs.pairs:
        node = known.get(ours.name)
        dtype = question.dtype or (node.dtype if node is not None else None)
        found = _operator(theirs, ours, (eager, graph), dtype, question.rules)
        agreements[found.results] = agreements.get(found.results, 0) + 1
        if found.results not in GOOD:
            source = ours.source or theirs.source or (node.source if node is not None else None)
            first = evolve(found, source=source, made_by=_made_by(ours.name, question.listings))
            break
        if found.results == "within" and (largest is None or _used(found) > _used(largest)):
            largest = found
    return DumpComparison(
        eager=eager.name,
        graph=graph.name,
        pairs=len(pairs.pairs),
        by_name=pairs.by_name,
        compared=sum(agreements.values()),
        agreements=agreements,
        first=first,
        largest=largest,
        only_eager=tuple(f"{one.name} ({one.operator})" for one in pairs.only_eager),
        only_graph=tuple(f"{one.name} ({one.operator})" for one in pairs.only_graph),
    )


def _used(found: OperatorResult) -> float:
    return found.error or 0.0


def _operator(
    theirs: DumpedOperator,
    ours: DumpedOperator,
    dumps: tuple[Tensors, Tensors],
    dtype: str | None,
    rules: Mapping[str, NumericTolerance],
) -> OperatorResult:
    name = operator_name(ours)
    given = [_values(a, b, dumps, dtype, None) for a, b in _beside(theirs.inputs, ours.inputs)]
    inputs = _worst(given)
    same = bool(given) and all(one.agreement == "same bits" for one in given)

    def allowed(kind: str) -> NumericTolerance:
        return contract(name, kind, same_inputs=same, rules=rules)

    made = [_values(a, b, dumps, dtype, allowed) for a, b in _beside(theirs.outputs, ours.outputs)]
    problems = [problem for one in made for problem in one.problems]
    results = _worst(made)
    if len(theirs.outputs) != len(ours.outputs) and made:
        problems.append(
            f"{len(theirs.outputs)} results in eager, {len(ours.outputs)} in the graph; the common ones count"
        )
    errors = [one.error for one in made]
    finite = [error for error in errors if error is not None]
    worst = max((one.tolerance for one in made), key=lambda t: (t.rtol, t.atol), default=EXACT)
    return OperatorResult(
        name=ours.name,
        eager=theirs.name,
        operator=ours.operator,
        results=results,
        inputs=inputs,
        error=max(finite, default=0.0) if len(finite) == len(errors) else None,
        rtol=worst.rtol,
        atol=worst.atol,
        problems=tuple(problems),
    )


@frozen(kw_only=True)
class _Value:
    agreement: Agreement
    error: float | None = 0.0
    tolerance: NumericTolerance = EXACT
    problems: tuple[str, ...] = ()


def _worst(values: Sequence[_Value]) -> Agreement:
    found: list[Agreement] = [one.agreement for one in values]
    return max(found, key=_RANK.index) if found else "not dumped"


def _beside(a: Sequence[DumpedValue], b: Sequence[DumpedValue]) -> Iterator[tuple[DumpedValue, DumpedValue]]:
    """Those of the same slot."""
    others = {value.slot: value for value in b}
    yield from ((value, others[value.slot]) for value in a if value.slot in others)


def _values(
    a: DumpedValue, b: DumpedValue, dumps: tuple[Tensors, Tensors], dtype: str | None, allowed: Allowed | None
) -> _Value:
    """`allowed` is a function of a dtype; None: the tolerance of the dtype alone."""
    if a.file is None or b.file is None:
        return _statistics(a, b, dtype, allowed)
    x, y = dumps[0].load(a), dumps[1].load(b)
    kind = _less_exact(dtype, *(str(one.dtype).removeprefix("torch.") for one in (x, y)))
    tolerance = tolerance_of(kind) if allowed is None else allowed(kind)
    if x.shape != y.shape:
        problem = f"result {a.slot}: {list(x.shape)} in eager, {list(y.shape)} in the graph"
        return _Value(agreement="another shape", error=None, tolerance=tolerance, problems=(problem,))
    if x.dtype != y.dtype and x.is_floating_point() and y.is_floating_point():
        x, y = x.to(torch.float64), y.to(torch.float64)
    found = compare(x, y, exact=tolerance == EXACT, declared=tolerance)
    agreement: Agreement = "same bits" if found.bitwise else "within" if found.passed else "beyond"
    problems = tuple(f"result {a.slot}: {problem.removeprefix('result: ')}" for problem in found.problems)
    return _Value(agreement=agreement, error=found.max_abs_err, tolerance=tolerance, problems=problems)


def _less_exact(dtype: str | None, *of_tensors: str) -> str:
    """`_less_exact(None, "float32", "bfloat16")` is "bfloat16"; a named dtype is about floats alone."""
    floats = [kind for kind in of_tensors if _place(kind) is not None]
    if len(floats) < len(of_tensors):
        return of_tensors[0]
    kinds = floats if dtype is None else [*floats, dtype]
    return max(kinds, key=lambda kind: _place(kind) or 0)


def _place(kind: str) -> int | None:
    return next((at for at, name in enumerate(ORDER) if kind.startswith(name)), None)


def _statistics(a: DumpedValue, b: DumpedValue, dtype: str | None, allowed: Allowed | None) -> _Value:
    """What two dumps without tensors show: equal statistics prove no equal tensors."""
    if a.shape is not None and b.shape is not None and a.shape != b.shape:
        problem = f"result {a.slot}: {list(a.shape)} in eager, {list(b.shape)} in the graph"
        return _Value(agreement="another shape", error=None, problems=(problem,))
    names = [name for name in a.statistics if name in b.statistics]
    if not names:
        return _Value(agreement="not dumped")
    kind = _less_exact(dtype, a.dtype or "float32", b.dtype or "float32")
    tolerance = tolerance_of(kind) if allowed is None else allowed(kind)
    problems: list[str] = []
    largest = 0.0
    for name in names:
        x, y = a.statistics[name], b.statistics[name]
        distance = 0.0 if x == y or (math.isnan(x) and math.isnan(y)) else abs(x - y)
        largest = max(largest, distance) if math.isfinite(distance) else math.inf
        if distance and not distance <= tolerance.atol + tolerance.rtol * abs(x):
            problems.append(f"result {a.slot}: {name} is {x:g} in eager, {y:g} in the graph")
    error = largest if math.isfinite(largest) else None
    agreement: Agreement = "beyond" if problems else "statistics agree"
    return _Value(agreement=agreement, error=error, tolerance=tolerance, problems=tuple(problems))


def _made_by(node: str, listings: Sequence[FxListing]) -> str | None:
    """`view_to_reshape` of `012_aot_forward_graph_after_view_to_reshape.txt`."""
    having = [listing.name for listing in listings if any(one.name == node for one in listing.nodes)]
    if not having or having[0] == listings[0].name:
        return None
    stem = having[0].rpartition(".")[0] or having[0]
    return stem.rpartition("_after_")[2] or stem


# How far a result may be from the eager one: not at all where the operator only moves data and was given the same bits,
# what a rule of adaptation says where one made it, else the tolerance of its dtype.

_MOVES = """
    view reshape _unsafe_view _reshape_alias permute transpose t expand slice select cat stack clone copy alias detach
    squeeze unsqueeze split split_with_sizes chunk unbind narrow gather index index_select embedding where masked_fill
    fill constant_pad_nd scatter index_put flip roll repeat tril triu zeros zeros_like ones ones_like full full_like
    arange contiguous flatten unflatten lift_fresh_copy slice_scatter select_scatter Embedding Identity Flatten
"""
MOVES = frozenset(_MOVES.split())
"""Operators and modules whose results are bits of their operands, or constants."""


def declared(rules: RuleSet) -> Mapping[str, NumericTolerance]:
    """{operator without namespace and overload: what a rule allows}, of what the rules adapt and what they put there.
    A rule that only rejects allows nothing."""
    found: dict[str, NumericTolerance] = {}
    for rule in (one for one in rules.rules if isinstance(one, Rewriting)):
        allowed = NumericTolerance(rule.contract.rtol, rule.contract.atol)
        for operator in (rule.op, *(call.op for call in rule.calls)):
            name = operator.split(".")[1] if "." in operator else operator
            known = found.get(name, EXACT)
            found[name] = NumericTolerance(max(known.rtol, allowed.rtol), max(known.atol, allowed.atol))
    return found


def contract(
    operator: str, dtype: str, *, same_inputs: bool, rules: Mapping[str, NumericTolerance]
) -> NumericTolerance:
    """`contract("view", "float16", same_inputs=True, rules={})` is EXACT. `dtype` is the less exact one of the two."""
    if operator in MOVES and same_inputs:
        return EXACT
    return tolerance_of(dtype).widened(rules.get(operator, EXACT))


# Which operator of a graph's dump is which one of the eager dump: by name, or as the nth call of its operator.


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
