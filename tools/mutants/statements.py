"""Careless changes to a whole statement of Python: what is left out, swallowed or answered with None."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tools.mutants.expressions import ALIASING, Change, changed, without_a_field

LOCK = re.compile(r"lock|acquire|release|alone|mutex|turn", re.IGNORECASE)
DURABLE = re.compile(r"fsync|flush|rename|replace|unlink|rollback|commit")
KEY = re.compile(r"key|identity|digest|signature|fingerprint")
WAIT = re.compile(r"wait|join|synchroni|record_event|barrier")

Text = Callable[[ast.expr | ast.stmt], str]


def changes(statement: ast.stmt, text: Text, function: str = "") -> Iterator[Change]:
    """Of a statement in the function of that name."""
    match statement:
        case ast.Continue():
            yield changed(statement, "left loop", "break")
        case ast.Break():
            yield changed(statement, "left loop", "continue")
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple() as key) if KEY.search(name):
            yield from without_a_field(key)
        case ast.If() if _is_guard(statement):
            alias = ALIASING.search(text(statement.test))
            yield changed(statement.test, "ignored alias" if alias else "dropped check", "False")
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            yield changed(statement.test, "negation", f"(not {text(statement.test)})")
        case ast.Raise():
            yield changed(statement, "swallowed error", "pass")
        case ast.Expr(value=ast.Call() as call):
            yield changed(statement, _dropped(text(call.func)), "pass")
        case ast.With(items=[ast.withitem(context_expr=context, optional_vars=None)]):
            yield _without(statement, context, text)
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield changed(value, "None", "None")
            if isinstance(value, ast.Tuple) and KEY.search(function):
                yield from without_a_field(value)
        case ast.AugAssign():
            yield changed(
                statement, "dropped check" if isinstance(statement.op, ast.BitAnd) else "ignored part", "pass"
            )
        case _:
            return


def _is_guard(statement: ast.If) -> bool:
    """`if …:` before one way out, with no else."""
    leaves = isinstance(statement.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
    return leaves and len(statement.body) == 1 and not statement.orelse


def _dropped(name: str) -> str:
    if LOCK.search(name):
        return "removed lock"
    if DURABLE.search(name):
        return "removed fsync or rename"
    return "dropped wait" if WAIT.search(name) else "dropped call"


def _without(statement: ast.With, context: ast.expr, text: Text) -> Change:
    assert context.end_lineno is not None
    assert context.end_col_offset is not None
    kind = "removed lock" if LOCK.search(text(context)) else "dropped context"
    return Change(
        kind=kind, new="if (True)", line=statement.lineno, column=statement.col_offset,
        end_line=context.end_lineno, end_column=context.end_col_offset,
    )  # fmt: skip
