"""Where a GE converter raises: the conditions of its source on its arguments alone, found without running anything.

`if x.rank != 4: raise …` gives `x.rank != 4`. A variable stands for what it was assigned, functions of the same file
are looked into, and a part that is no matter of the arguments is left open (`...`). A way that returns nothing, and a
call of one of GE's functions with an argument that it lacks, raise as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from npucompose.vendor.converter_conditions import FUNCTIONS, META_OUTPUTS, OPEN, RESULTS, SIGNS, TYPES, guards, joined

LONGEST = 600
"""Characters of an expression that is kept; a longer one is left open."""
DEEPEST = 6
"""Functions that call each other."""
_OPEN = ast.Constant(...)
_SYMBOLS = ("torch.", "DataType.")
_OF_TENSORS = ("rank", "dtype", "symsize")
_LEAVES = (ast.Return, ast.Break, ast.Continue)

Values = dict[str, ast.expr]
Way = tuple[ast.expr, ...]
"""Conditions that all hold where control is."""


@frozen
class SourceFile:
    """What the converters of one file can call and read: its functions, its constants, and GE's own functions."""

    functions: Mapping[str, ast.FunctionDef] = field(factory=dict[str, ast.FunctionDef])
    constants: Mapping[str, ast.expr] = field(factory=dict[str, ast.expr])
    ge: Mapping[str, frozenset[str]] = field(factory=dict[str, "frozenset[str]"])
    """{function of GE: names of its arguments}."""

    @classmethod
    def from_tree(cls, tree: ast.Module, ge: Mapping[str, frozenset[str]]) -> SourceFile:
        constants = {
            one.targets[0].id: one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }
        return cls({one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}, constants, ge)


def ge_functions(text: str) -> dict[str, frozenset[str]]:
    """{function: names of its arguments} of the file that defines GE's functions, which is too large to be parsed."""
    heads = re.findall(r"^def (\w+)\((.*?)\)(?: *->[^\n]*)?: *(?:#[^\n]*)?$", text, re.MULTILINE | re.DOTALL)
    return {name: frozenset(re.findall(r"(?:^|,)\s*(\w+)\s*[:=]", given, re.MULTILINE)) for name, given in heads}


def refusing(function: ast.FunctionDef, file: SourceFile) -> str:
    """The conditions of which any makes the converter raise, in one text that begins with its arguments, which a call
    gives by their places (`lambda x, y: (x.rank != 4) or (y is None)`); empty where there is none."""
    walk = _Walk(file)
    values: Values = {one.arg: ast.Name(one.arg) for one in (*function.args.args, *function.args.kwonlyargs)}
    end = walk.body(function.body, values, ())
    if end is not None:
        walk.returned(ast.Constant(None), end)
    found = joined(walk.conditions())
    names = ", ".join(one.arg for one in function.args.args if one.arg != META_OUTPUTS)
    return f"lambda {names}: {found}" if found else ""


def always(conditions: str) -> str:
    """What is wrong with a converter that raises in every call, in one sentence; empty where it does not."""
    values = [
        ast.literal_eval(one)
        for one in guards(conditions)
        if isinstance(ast.parse(one, mode="eval").body, ast.Constant)
    ]
    broken = next((one for one in values if isinstance(one, str)), None)
    return (
        f"its converter is broken: {broken}"
        if broken
        else "every way through its converter raises"
        if True in values
        else ""
    )


class _Walk:
    """One converter, statement by statement: `ways` are those on which it raises."""

    def __init__(self, file: SourceFile) -> None:
        self.file, self.ways, self.deep = file, list[Way](), 0
        self.inner: dict[str, ast.FunctionDef] = {}
        self.results: list[list[tuple[Way, ast.expr]]] = []

    def conditions(self) -> Iterator[str]:
        for way in self.ways:
            parts = tuple(dict.fromkeys(ast.unparse(ast.fix_missing_locations(one)) for one in way))
            if set(parts) != {OPEN} and len(" and ".join(parts)) < 2 * LONGEST:
                yield " and ".join(f"({part})" if len(parts) > 1 and _loose(part) else part for part in parts) or "True"

    def returned(self, value: ast.expr, way: Way) -> None:
        """Of a converter: nothing, where the operator has results."""
        if isinstance(value, ast.Constant) and value.value is None:
            self.ways.append((*way, ast.Compare(ast.Name(RESULTS), [ast.NotEq()], [ast.Constant(0)])))

    # Statements

    def body(self, statements: Sequence[ast.stmt], values: Values, way: Way) -> Way | None:
        """The way behind the statements, which set `values`; None where no control comes to their end."""
        at: Way | None = way
        for statement in statements:
            at = self.statement(statement, values, at)
            if at is None:
                return None
        return at

    def statement(self, statement: ast.stmt, values: Values, way: Way) -> Way | None:
        match statement:
            case ast.Raise():
                self.ways.append(way)
                return None
            case ast.Assert(test=test):
                self.ways.append((*way, _not(self.expression(test, values, way))))
            case ast.Return(value=value):
                given = self.expression(value or ast.Constant(None), values, way)
                self.results[-1].append((way, given)) if self.results else self.returned(given, way)
                return None
            case ast.If():
                return self.choice(statement, values, way)
            case ast.For() | ast.While() | ast.Try():
                return self.loop(statement, values, way)
            case ast.With(body=body):
                return self.body(body, values, way)
            case ast.Assign(targets=targets, value=value):
                given = self.expression(value, values, way)
                for target in targets:
                    _bind(target, given, values)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                _bind(target, self.expression(value, values, way), values)
            case ast.AugAssign(target=target, op=sign, value=value):
                _bind(target, self.expression(ast.BinOp(_read(target), sign, value), values, way), values)
            case ast.Expr(value=value):
                self.expression(value, values, way)
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                    _forget(_base(value.func.value), values)
            case ast.FunctionDef(name=name):
                self.inner[name] = statement
            case _:
                pass
        return way

    def choice(self, statement: ast.If, values: Values, way: Way) -> Way | None:
        test = self.expression(statement.test, values, way)
        first, second = dict(values), dict(values)
        yes = self.body(statement.body, first, (*way, test))
        other = way if yes is None and not _returns(statement.body) else (*way, _not(test))
        no = self.body(statement.orelse, second, other)
        if yes is None or no is None:
            values.update(first if no is None else second)
            if no is None and yes is not None and not _returns(statement.orelse):
                return (*way, *yes[len(way) + 1 :])
            return no if yes is None else yes
        for name in {*first, *second}:
            values[name] = _either(test, first.get(name, _OPEN), second.get(name, _OPEN))
        more = _both(yes[len(way) + 1 :]), _both(no[len(other) :])
        return way if more == (None, None) else (*way, _either(test, *(one or ast.Constant(True) for one in more)))

    def loop(self, statement: ast.For | ast.While | ast.Try, values: Values, way: Way) -> Way | None:
        """A loop over a list that is written out is its rounds; what any other does is open, as in a `try`."""
        over = self.expression(statement.iter, values, way) if isinstance(statement, ast.For) else _OPEN
        jumps = any(isinstance(node, _LEAVES) for node in ast.walk(statement))
        if isinstance(statement, ast.For) and isinstance(over, ast.List | ast.Tuple) and not jumps:
            at: Way | None = way
            for one in over.elts:
                _bind(statement.target, one, values)
                at = None if at is None else self.body(statement.body, values, at)
            return at
        _forget_all(statement, values)
        inside = statement.handlers[0].body if isinstance(statement, ast.Try) and statement.handlers else []
        self.body([*statement.body, *statement.orelse, *inside], dict(values), (*way, _OPEN))
        return (*way, _OPEN) if _returns([statement]) else way

    # Expressions

    def expression(
        self, node: ast.expr, values: Mapping[str, ast.expr], way: Way, bound: Collection[str] = ()
    ) -> ast.expr:
        """The expression over the converter's arguments; open where it is of more than them."""
        made = self._expression(node, values, way, bound)
        return made if _is_open(made) or len(ast.unparse(ast.fix_missing_locations(made))) <= LONGEST else _OPEN

    def _expression(self, node: ast.expr, values: Mapping[str, ast.expr], way: Way, bound: Collection[str]) -> ast.expr:
        def of(part: ast.expr, more: Collection[str] = ()) -> ast.expr:
            return self.expression(part, values, way, (*bound, *more))

        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return node
            case ast.Name(id=name):
                if name in bound:
                    return node
                known = values.get(name) or self.file.constants.get(name) or _OPEN
                return known if name in values or _is_open(known) else self.expression(known, {}, way)
            case ast.Attribute(value=value, attr=attribute):
                if ast.unparse(node).startswith(_SYMBOLS) and _root(node) not in values:
                    return node
                return _closed(ast.Attribute(of(value), attribute), "value") if attribute in _OF_TENSORS else _OPEN
            case ast.BoolOp(op=sign, values=parts):
                return ast.BoolOp(sign, [of(part) for part in parts])
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=part):
                return _closed(ast.UnaryOp(sign, of(part)), "operand")
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
                return _closed(ast.BinOp(of(left), sign, of(right)), "left", "right")
            case ast.Compare(left=left, ops=signs, comparators=others):
                return _closed(ast.Compare(of(left), signs, [of(one) for one in others]), "left", "comparators")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return _either(of(test), of(body), of(orelse))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                made = [of(part) for part in parts]
                return _OPEN if any(isinstance(part, ast.Starred) for part in parts) else ast.List(made)
            case ast.Dict(keys=keys, values=given) if all(keys):
                return ast.Dict([of(key) for key in keys if key], [of(one) for one in given])
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                parts = [None if one is None else of(one) for one in (lower, upper, step)]
                return (
                    _OPEN
                    if any(one is not None and _is_open(one) for one in parts)
                    else _part(of(value), ast.Slice(*parts))
                )
            case ast.Subscript(value=value, slice=at):
                return _part(of(value), of(at))
            case ast.ListComp(elt=each, generators=[loop]) | ast.GeneratorExp(elt=each, generators=[loop]):
                return self._comprehension(each, loop, of)
            case ast.Call():
                return self._call(node, of, way)
            case ast.Starred(value=value):
                return of(value)
            case _:
                return _OPEN

    def _comprehension(self, each: ast.expr, loop: ast.comprehension, of: Any) -> ast.expr:
        names = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        made = ast.comprehension(loop.target, of(loop.iter), [of(one, names) for one in loop.ifs], 0)
        return _OPEN if _is_open(made.iter) else ast.ListComp(of(each, names), [made])

    def _call(self, node: ast.Call, of: Any, way: Way) -> ast.expr:
        name = ast.unparse(node.func)
        if name == "isinstance" and len(node.args) == 2:
            types = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            known = all(ast.unparse(one) in TYPES for one in types)
            return _closed(ast.Call(node.func, [of(node.args[0]), node.args[1]], []), "args") if known else _OPEN
        args = [of(one) for one in node.args]
        keywords = {one.arg: of(one.value) for one in node.keywords if one.arg}
        spread = len(keywords) < len(node.keywords) or any(isinstance(one, ast.Starred) for one in node.args)
        function = self.inner.get(name) or self.file.functions.get(name)
        if function is not None:
            return _OPEN if spread else self._inside(function, args, keywords, way)
        if name.startswith("ge."):
            self._ge(name, keywords, way)
        if name == "zip" and all(isinstance(one, ast.List) for one in args):
            return ast.List([ast.List(list(row)) for row in zip(*(one.elts for one in args), strict=False)])  # type: ignore[attr-defined]
        if name == "list" and args and isinstance(args[0], ast.List):
            return args[0]
        if name not in FUNCTIONS or spread:
            return _OPEN
        return _closed(ast.Call(node.func, args, [ast.keyword(key, one) for key, one in keywords.items()]), "args")

    def _inside(
        self, function: ast.FunctionDef, args: list[ast.expr], keywords: Mapping[str, ast.expr], way: Way
    ) -> ast.expr:
        """What a function of the file gives for these arguments; where it raises, the converter does."""
        given = function.args
        names = [one.arg for one in (*given.args, *given.kwonlyargs)]
        if self.deep == DEEPEST or len(args) > len(given.args) or given.vararg or given.kwarg:
            return _OPEN
        defaults = dict(zip([one.arg for one in given.args][::-1], given.defaults[::-1], strict=False))
        defaults |= {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        values: Values = {**dict.fromkeys(names, _OPEN), **defaults, **dict(zip(names, args, strict=False)), **keywords}
        self.deep += 1
        self.results.append([])
        end = self.body(function.body, values, way)
        self.deep -= 1
        results = self.results.pop()
        made: ast.expr = ast.Constant(None) if end is not None else results.pop()[1] if results else _OPEN
        for at, value in reversed(results):
            made = _either(_both(at[len(way) :]) or ast.Constant(True), value, made)
        return made

    def _ge(self, name: str, keywords: Mapping[str, ast.expr], way: Way) -> None:
        takes = self.file.ge.get(name.removeprefix("ge."))
        for keyword in keywords:
            if takes is not None and keyword not in takes:
                self.ways.append((*way, ast.Constant(f"{name} takes no {keyword}")))


def _bind(target: ast.expr, value: ast.expr, values: Values) -> None:
    if isinstance(target, ast.Name):
        values[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        fits = isinstance(value, ast.List) and len(value.elts) == len(target.elts)
        parts = value.elts if fits else [_OPEN] * len(target.elts)  # type: ignore[attr-defined]
        for one, part in zip(target.elts, parts, strict=True):
            _bind(one, part, values)
    else:
        _forget(_base(target), values)


def _forget(name: str, values: Values) -> None:
    if name in values:
        values[name] = _OPEN


def _forget_all(statement: ast.stmt, values: Values) -> None:
    """Whatever the statement may set or change."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            values[_base(node)] = _OPEN
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            _forget(_base(node.value.func), values)


def _base(node: ast.expr) -> str:
    """`y` of `y.desc.dtype` and of `y[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    return ast.unparse(node).partition(".")[0]


def _read(target: ast.expr) -> ast.expr:
    return ast.Name(target.id) if isinstance(target, ast.Name) else _OPEN


def _returns(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for one in statements for node in ast.walk(one))


def _is_open(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _closed(node: ast.expr, *parts: str) -> ast.expr:
    """The node, or open where one of these parts is."""
    found = [getattr(node, part) for part in parts]
    return (
        _OPEN if any(_is_open(one) for part in found for one in (part if isinstance(part, list) else [part])) else node
    )


def _part(of: ast.expr, at: ast.expr) -> ast.expr:
    if isinstance(of, ast.List) and isinstance(at, ast.Constant) and isinstance(at.value, int):
        return of.elts[at.value] if -len(of.elts) <= at.value < len(of.elts) else _OPEN
    return _closed(ast.Subscript(of, at), "value", "slice")


def _not(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return _closed(ast.UnaryOp(ast.Not(), test), "operand")


def _either(test: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    if ast.dump(yes) == ast.dump(no):
        return yes
    return _OPEN if _is_open(test) or (_is_open(yes) and _is_open(no)) else ast.IfExp(test, yes, no)


def _both(way: Way) -> ast.expr | None:
    return None if not way else way[0] if len(way) == 1 else ast.BoolOp(ast.And(), list(way))


def _loose(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.BoolOp | ast.IfExp)
