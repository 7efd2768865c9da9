"""Arithmetic of constants in a script: its value is known without running anything."""

from __future__ import annotations

import ast
from typing import Any

from npucompose.recipe.values import NOT_CONSTANT, Const, Unknown, Value


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
