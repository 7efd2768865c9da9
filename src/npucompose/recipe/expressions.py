"""Expressions that are put together of known values: comparisons, and/or/not, conditional values, texts, arithmetic.

What is not known stays as it was told: a comparison of an environment variable is not known because of that variable.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.recipe.arithmetic import computed
from npucompose.recipe.values import NOT_CONSTANT, Const, Items, Unknown, Value, plain, spread, with_keywords

if TYPE_CHECKING:
    from npucompose.recipe.reader import _Reader

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
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def composed(reader: _Reader, e: ast.expr, scope: Mapping[str, Value]) -> Value | None:
    """The value, or None for an expression of another kind. Every part is read, for it may call something."""
    if isinstance(e, ast.IfExp):
        return _conditional(reader, e, scope)
    if isinstance(e, ast.Compare):
        sides = [reader.value(side, scope) for side in (e.left, *e.comparators)]
        return _compared(e, sides) if all(isinstance(side, Const) for side in sides) else why_unknown(sides)
    if isinstance(e, ast.BoolOp):
        return _first_that_decides(reader, e, scope)
    if isinstance(e, ast.UnaryOp):
        of = reader.value(e.operand, scope)
        made = ast.UnaryOp(e.op, _literal(of)) if isinstance(of, Const) else None
        return computed(made) if made is not None else why_unknown([of])
    if isinstance(e, ast.BinOp):
        sides = [reader.value(side, scope) for side in (e.left, e.right)]
        known = all(isinstance(side, Const) and not isinstance(side.value, list) for side in sides)
        return computed(ast.BinOp(_literal(sides[0]), e.op, _literal(sides[1]))) if known else why_unknown(sides)
    if isinstance(e, ast.JoinedStr):
        return _text(reader, e, scope)
    if isinstance(e, COMPREHENSIONS):
        return reader.comprehension(e, scope)
    if isinstance(e, (ast.Await, ast.NamedExpr, ast.Starred)):
        return reader.value(e.value, scope)
    return None


def _literal(value: Value) -> ast.expr:
    return ast.Constant(plain(value))


def why_unknown(parts: Sequence[Value]) -> Unknown:
    """Of several parts the first that says why it is not known: the variable of the environment, the argument."""
    return next((part for part in parts if isinstance(part, Unknown)), Unknown(why=NOT_CONSTANT))


def _compared(e: ast.Compare, sides: Sequence[Value]) -> Value:
    values = [plain(side) for side in sides]
    try:
        held = all(COMPARED[type(op)](a, b) for op, a, b in zip(e.ops, values, values[1:], strict=False))
    except (TypeError, ValueError):
        return Unknown(why=NOT_CONSTANT)
    return Const(value=held)


def _conditional(reader: _Reader, e: ast.IfExp, scope: Mapping[str, Value]) -> Value:
    test = reader.decided(e.test, scope)
    if isinstance(test, Const):
        return reader.value(e.body if test.value else e.orelse, scope)
    either: list[Value] = []
    for part in (e.body, e.orelse):
        with reader.conditional():
            either.append(reader.value(part, scope))
    return why_unknown([test, *either])


def _first_that_decides(reader: _Reader, e: ast.BoolOp, scope: Mapping[str, Value]) -> Value:
    values = [reader.value(part, scope) for part in e.values]
    stops = isinstance(e.op, ast.Or)
    for value in values:
        if not isinstance(value, Const):
            return why_unknown(values)
        if bool(value.value) is stops:
            return value
    return values[-1]


def _text(reader: _Reader, e: ast.JoinedStr, scope: Mapping[str, Value]) -> Value:
    parts: list[Value] = []
    for part in e.values:
        formatted = isinstance(part, ast.FormattedValue)
        parts.append(reader.value(part.value if formatted else part, scope))
        if formatted and (part.format_spec is not None or part.conversion != -1):
            return Unknown(why=NOT_CONSTANT)
    if not all(isinstance(part, Const) for part in parts):
        return why_unknown(parts)
    text = "".join(str(plain(part)) for part in parts)
    return Const(value=text) if len(text) <= 4096 else Unknown(why=NOT_CONSTANT)


def _get(reader: _Reader, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key = plain(args[0]) if args else None
    default = args[1] if len(args) > 1 else keywords.get("default", Const(value=None))
    return on.items.get(str(key), on.items.get("**", default))


def _update(reader: _Reader, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    given = {name: value for other in args for name, value in spread(other).items()} | with_keywords(keywords)
    on.items.update({name: reader.certain(value, on) for name, value in given.items()})
    return Const(value=None)


def _setdefault(reader: _Reader, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key, value = str(plain(args[0])) if args else "", args[1] if len(args) > 1 else Const(value=None)
    return on.items.setdefault(key, reader.certain(value, on))


def _items(reader: _Reader, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    return on.rounds()


def _pop(reader: _Reader, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key = str(plain(args[0])) if args else ""
    found = on.items.get(key, args[1] if len(args) > 1 else Unknown(why=NOT_CONSTANT))
    if doubt := reader.doubt_of(on):
        on.items.update({key: Unknown(why=doubt)} if key in on.items else {})
    else:
        on.items.pop(key, None)
    return found


DICT_METHODS: Mapping[str, Callable[[Any, Items, Sequence[Value], Mapping[str, Value]], Value]] = {
    "get": _get,
    "update": _update,
    "setdefault": _setdefault,
    "items": _items,
    "pop": _pop,
}
