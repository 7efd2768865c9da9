"""The function that an ejected script makes a filter of nodes with, and how a reader knows it again."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from types import CodeType
from typing import Any

from npucompose.targets.torchair.node_filter import node_filter


def source() -> str:
    """The text that is pasted: the genuine object is given the very same function by npucompose."""
    return inspect.getsource(node_filter).rstrip()


def is_node_filter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a script's function is that one, whatever its comments say."""
    return function.name == node_filter.__name__ and _meaning(function) == _ours()


@cache
def _ours() -> str:
    (function,) = ast.parse(source()).body
    assert isinstance(function, ast.FunctionDef)
    return _meaning(function)


def _meaning(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Signature and body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return "\n".join(ast.dump(part) for part in (function.args, *body))


def patterns_of(function: Any) -> tuple[str, ...] | None:
    """The patterns of a live filter that this function made, here or pasted into a script; None for any other."""
    code = getattr(function, "__code__", None)
    if code is None or _compiled(code) != _compiled(node_filter(()).__code__):
        return None
    return tuple(inspect.getclosurevars(function).nonlocals["patterns"])


def _compiled(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, wherever it was written: equal code objects also have equal line numbers."""
    consts = [_compiled(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    named = [const for const in consts if not (isinstance(const, str) and const.endswith("<genexpr>"))]
    return (code.co_code, code.co_names, code.co_freevars, tuple(named))
