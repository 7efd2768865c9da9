"""Arithmetic and comparisons of constants, in bounds: a script cannot make its reader compute for hours."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npucompose.recipe.values import NOT_CONSTANT, Const, Unknown, Value, is_plain, plain

COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
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
}


def literal(value: Value) -> ast.expr:
    return ast.Constant(plain(value))


def compared(e: ast.Compare, sides: Sequence[Value]) -> Value | None:
    """None where a side is no constant."""
    if not all(map(is_plain, sides)):
        return None
    values = [plain(side) for side in sides]
    try:
        held = all(COMPARED[type(op)](a, b) for op, a, b in zip(e.ops, values, values[1:], strict=False))
    except (TypeError, ValueError):
        return Unknown(why=NOT_CONSTANT)
    return Const(value=held)


def computed(e: ast.expr) -> Value:
    """Arithmetic of constants (`2 ** 20`, `-1`, `"a" + "b"`) is their value; all else is not known."""
    parts = [node for node in ast.walk(e) if not isinstance(node, (ast.operator, ast.unaryop, ast.expr_context))]
    if not all(isinstance(node, (ast.Constant, ast.BinOp, ast.UnaryOp)) for node in parts):
        return Unknown(why=NOT_CONSTANT)
    try:
        return Const(value=_arithmetic(e))
    except (ArithmeticError, TypeError, KeyError, ValueError):
        return Unknown(why=NOT_CONSTANT)


def _arithmetic(e: Any) -> Any:
    if isinstance(e, ast.Constant):
        return e.value
    if isinstance(e, ast.UnaryOp):
        inner = _arithmetic(e.operand)
        return {ast.USub: lambda: -inner, ast.UAdd: lambda: inner, ast.Not: lambda: not inner}[type(e.op)]()
    left, right = _bounded(_arithmetic(e.left)), _bounded(_arithmetic(e.right))
    acts: dict[Any, Any] = {ast.Add: lambda: left + right, ast.Sub: lambda: left - right}
    if isinstance(right, int) and abs(right) <= 64:
        acts |= {ast.Mult: lambda: left * right, ast.Pow: lambda: left**right, ast.LShift: lambda: left << right}
    return _bounded(acts[type(e.op)]())


def _bounded(value: Any) -> Any:
    """ValueError for what grows from step to step: a script cannot make the reader compute for hours."""
    if isinstance(value, int) and value.bit_length() > 4096:
        raise ValueError("a number that is too long")
    if isinstance(value, (str, bytes)) and len(value) > 4096:
        raise ValueError("a text that is too long")
    return value
