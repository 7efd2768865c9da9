"""How far an operator's result in a graph may be from the eager one: not at all where it only moves data and was given
the same bits, what a rule of adaptation says where one made it, else the tolerance of its dtype."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.results.measured import EXACT, NumericTolerance, tolerance_of
from npucompose.schema.adapt import Rewriting, RuleSet

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
