"""Arithmetic and comparisons of constants, in bounds: a script cannot make its reader compute for hours."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npucompose.recipe.values import NOT_CONSTANT, Const, Unknown, Value, is_plain, plain

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
GROWING = (ast.Mult, ast.Pow, ast.LShift)
LONGEST = 4096
"""Bits of a number, characters of a text."""


def applied(function: Callable[..., Any], *values: Value) -> Value:
    """What a function of constants gives; it is not known where one is none, and where it raises."""
    try:
        return Const(value=function(*map(plain, values))) if all(map(is_plain, values)) else Unknown(why=NOT_CONSTANT)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return Unknown(why=NOT_CONSTANT)


def compared(e: ast.Compare, sides: Sequence[Value]) -> Value | None:
    """None where a side is no constant."""

    def held(*values: Any) -> bool:
        return all(OPERATORS[type(op)](a, b) for op, a, b in zip(e.ops, values, values[1:], strict=False))

    return applied(held, *sides) if all(map(is_plain, sides)) else None


def computed(op: ast.operator | ast.unaryop, *values: Any) -> Any:
    """`2 ** 20`, `-1`, `"a" + "b"`; ValueError or KeyError for what is computed otherwise or grows too long."""
    if isinstance(op, GROWING) and not (isinstance(values[1], int) and abs(values[1]) <= 64):
        raise ValueError("a factor that is too large")
    return _bounded(OPERATORS[type(op)](*map(_bounded, values)))


def _bounded(value: Any) -> Any:
    """ValueError for what grows from step to step: a script cannot make the reader compute for hours."""
    if isinstance(value, int) and value.bit_length() > LONGEST:
        raise ValueError("a number that is too long")
    if isinstance(value, (str, bytes)) and len(value) > LONGEST:
        raise ValueError("a text that is too long")
    return value
