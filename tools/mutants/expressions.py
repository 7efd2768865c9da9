"""Careless changes to one expression of Python. Knows nothing of the statement around it but whether import runs it."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from attrs import frozen

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
EXCHANGED = {"all": "any", "any": "all", "min": "max", "max": "min"}
UNITS = {
    1024: 1000,
    1e3: 1,
    1e6: 1e3,
    1e9: 1e6,
    1e-3: 1e-6,
    1e-6: 1e-9,
}
SANITISING = re.compile(
    r"(^|_)(escape|quote|strip|resolve|absolute|expanduser|normpath|realpath|sorted|abs|lower|casefold|dedent|contiguous|detach)$"
)
COPYING = {"clone", "copy", "deepcopy", "list", "dict"}
OTHER_END = {"low": "high", "high": "low", "begin": "end", "end": "begin", "start": "stop", "stop": "start"}
"""Attributes of an interval, and its other end."""
ALIASING = re.compile(r"alias|overlap|storage|shares|same_memory")
ORDER_OF_NO_ACCOUNT = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast", "min", "max", "gcd", "lcm"}
"""Exchanging what these are given is an error at once, or changes nothing: either proves nothing."""


@frozen(kw_only=True)
class Change:
    """What stands between two places of the source, and what replaces it."""

    kind: str
    new: str
    line: int
    column: int
    end_line: int
    end_column: int


def changed(node: ast.expr | ast.stmt, kind: str, new: str) -> Change:
    """`new` in the place of the whole node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Change(
        kind=kind,
        new=new,
        line=node.lineno,
        column=node.col_offset,
        end_line=node.end_lineno,
        end_column=node.end_col_offset,
    )


def replaced(node: ast.expr, kind: str, new: ast.expr) -> Change:
    return changed(node, kind, f"({ast.unparse(new)})")


def changes(node: ast.expr, at_import: bool) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[operator], comparators=[_]):
            other = COMPARED[type(operator)]()
            yield replaced(node, "comparison", ast.Compare(node.left, [other], node.comparators))
        case ast.BoolOp():
            for k, dropped in enumerate(node.values):
                rest = [value for value in node.values if value is not dropped]
                left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield replaced(node, _condition(node.values[k]), left)
        case ast.UnaryOp(op=ast.Not()):
            yield replaced(node, "negation", node.operand)
        case ast.IfExp():
            yield replaced(node, "ignored case", node.body)
            yield replaced(node, "ignored case", node.orelse)
        case ast.Constant():
            yield from _constant(node)
        case ast.BinOp():
            yield from _binary(node, at_import)
        case ast.Subscript():
            yield from _index(node)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from _filters(node)
        case ast.List() | ast.Tuple() | ast.Set():
            yield from _spread(node)
            yield from _shorter(node)
        case ast.Dict():
            yield from _merged(node)
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in OTHER_END:
            yield replaced(node, "other end", ast.Attribute(node.value, OTHER_END[name], ast.Load()))
        case ast.Call():
            yield from _call(node)
        case _:
            return


def is_assertion(node: ast.expr, part: ast.AST) -> bool:
    """Whether `part` is the `strict=True` of a call of zip: for the reader, as an assert is."""
    called = _name(node.func) if isinstance(node, ast.Call) else ""
    return called == "zip" and isinstance(part, ast.keyword) and part.arg == "strict"


def _condition(node: ast.expr) -> str:
    return "ignored alias" if ALIASING.search(ast.unparse(node)) else "dropped check"


def _constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield changed(node, "flag", str(not value))
    elif isinstance(value, int | float) and value in UNITS and value != 1:
        yield changed(node, "unit", repr(type(value)(UNITS[value])))
    elif isinstance(value, int):
        yield changed(node, "off by one", str(value + 1))
    elif isinstance(value, float) and value:
        yield changed(node, "tolerance", repr(value * 1000))


def _binary(node: ast.BinOp, at_import: bool) -> Iterator[Change]:
    text = any(isinstance(n, ast.JoinedStr) or _is_text(n) for n in (node.left, node.right))
    joins = isinstance(node.op, ast.Add | ast.Sub) or (isinstance(node.op, ast.BitOr | ast.BitAnd) and not at_import)
    if joins and not text:
        yield replaced(node, "ignored part", node.left)
    if isinstance(node.op, ast.Sub):
        yield replaced(node, "swapped arguments", ast.BinOp(node.right, ast.Sub(), node.left))
    if isinstance(node.op, ast.FloorDiv):
        yield replaced(
            node, "off by one", ast.BinOp(ast.BinOp(node.left, ast.FloorDiv(), node.right), ast.Add(), ast.Constant(1))
        )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _index(node: ast.Subscript) -> Iterator[Change]:
    """The first instead of the last, and the other way round."""
    match node.slice:
        case ast.Constant(value=0) if not isinstance(node.slice.value, bool):
            yield changed(node.slice, "off by one", "-1")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            yield changed(node.slice, "off by one", "0")
        case _:
            return


def _filters(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Iterator[Change]:
    for generator in node.generators:
        for condition in generator.ifs:
            yield changed(condition, _condition(condition), "True")


def _spread(node: ast.List | ast.Tuple | ast.Set) -> Iterator[Change]:
    """`[*a, *b]` without b, `(x, *rest)` without the rest."""
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load) or len(node.elts) < 2:
        return
    for starred in node.elts:
        if isinstance(starred, ast.Starred):
            other = copy.copy(node)
            other.elts = [element for element in node.elts if element is not starred]
            yield replaced(node, "ignored part", other)


def _shorter(node: ast.List | ast.Tuple | ast.Set) -> Iterator[Change]:
    """A tuple of constants without one of them."""
    if len(node.elts) >= 2 and all(isinstance(element, ast.Constant) for element in node.elts):
        yield from _without_each(node, "dropped item")


def without_a_field(key: ast.Tuple) -> Iterator[Change]:
    """A key, or another tuple that tells things apart, without one of its fields."""
    if len(key.elts) >= 2 and not any(isinstance(field, ast.Starred | ast.Constant) for field in key.elts):
        yield from _without_each(key, "dropped field")


def _without_each(node: ast.List | ast.Tuple | ast.Set, kind: str) -> Iterator[Change]:
    for dropped in node.elts:
        other = copy.copy(node)
        other.elts = [element for element in node.elts if element is not dropped]
        yield replaced(node, kind, other)


def _merged(node: ast.Dict) -> Iterator[Change]:
    """`{**a, **b}` as `{**b, **a}`: who has the last word is another."""
    if None in node.keys and len(node.keys) >= 2:
        yield replaced(node, "merged the other way", ast.Dict(node.keys[::-1], node.values[::-1]))


def _call(node: ast.Call) -> Iterator[Change]:
    name = _name(node.func)
    if name in EXCHANGED and isinstance(node.func, ast.Name):
        yield changed(node.func, "quantifier", EXCHANGED[name])
    if len(node.args) >= 2 and name not in ORDER_OF_NO_ACCOUNT:
        yield from _swapped(node)
    inner = _wrapped(node)
    if inner is None:
        return
    if SANITISING.search(name):
        yield replaced(node, "dropped sanitising", inner)
    elif name in COPYING and not isinstance(inner, ast.GeneratorExp) and not _may_be_an_iterator(name, inner):
        yield replaced(node, "ignored alias", inner)


def _may_be_an_iterator(name: str, inner: ast.expr) -> bool:
    return name == "list" and isinstance(inner, ast.Call)


def _swapped(node: ast.Call) -> Iterator[Change]:
    first, second, *rest = node.args
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    if not starred and ast.unparse(first) != ast.unparse(second):
        yield replaced(node, "swapped arguments", ast.Call(node.func, [second, first, *rest], node.keywords))


def _wrapped(node: ast.Call) -> ast.expr | None:
    """x of `f(x)`, of `f(x, …)` with names only, and of `x.f()`."""
    if len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
        return node.args[0]
    if not node.args and isinstance(node.func, ast.Attribute):
        return node.func.value
    return None


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
