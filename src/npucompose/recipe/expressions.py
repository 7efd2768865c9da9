"""Expressions of a script: names, constants, what is put together of known values, and calls.

What is not known keeps its reason: a comparison of an environment variable is not known because of that variable.
"""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from npucompose.recipe.calls import Args, Keywords, called, compared_with_none
from npucompose.recipe.values import (
    CONDITION,
    LOOP,
    MOST_ITEMS,
    NOT_CONSTANT,
    TOO_MANY,
    Analysis,
    At,
    Config,
    Const,
    Def,
    Dotted,
    Items,
    Logger,
    Object,
    Parameter,
    Unknown,
    Value,
    from_environment,
    inside,
    items_of,
    module,
    plain,
    size,
    spread,
    unknown_in,
    with_keywords,
)

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


@define(eq=False)
class Expressions(Analysis, ABC):
    """The values of expressions; what a function or class of the script gives is for who knows statements."""

    stores: Counter[str] = field(factory=Counter[str])
    """How often the script sets an attribute of each name."""

    @abstractmethod
    def own(self, made: Def | Object, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """What a call of the script's own function or class gives."""

    def value(self, e: ast.expr, scope: Mapping[str, Value]) -> Value:
        self.step()
        if isinstance(e, ast.Constant):
            return Const(value=e.value)
        if isinstance(e, ast.Name):
            return scope.get(e.id, Unknown(why=f"'{e.id}' is not a constant of this script", name=e.id))
        if isinstance(e, ast.Attribute):
            return self._attribute(e, scope)
        if isinstance(e, ast.Subscript):
            return self._subscript(e, scope)
        if isinstance(e, ast.Dict):
            keys = [self.value(key, scope) if key else None for key in e.keys]
            values = [self.value(v, scope) for v in e.values]
            return Items(items=items_of(zip(keys, values, strict=True)), branch=self.branch)
        if isinstance(e, (ast.List, ast.Tuple, ast.Set)):
            items = [self.value(item, scope) for item in e.elts]
            return self._list(items)
        if isinstance(e, ast.Call):
            return self._call(e, scope)
        function = Unknown(why="it is a function") if isinstance(e, ast.Lambda) else None
        return function or self._composed(e, scope) or computed(e)

    def decided(self, test: ast.expr, scope: Mapping[str, Value]) -> Value:
        """A condition; not known in a loop or by an attribute that is set more than once, which may have changed."""
        value = self.value(test, scope)
        changing = any(isinstance(n, ast.Attribute) and self.stores[n.attr] > 1 for n in ast.walk(test))
        looped = any(doubt.why == LOOP for doubt in self.branch) and not isinstance(test, ast.Constant)
        return Unknown(why=CONDITION) if isinstance(value, Const) and (changing or looped) else value

    def _composed(self, e: ast.expr, scope: Mapping[str, Value]) -> Value | None:
        """The value, or None for an expression of another kind. Every part is read, for it may call something."""
        if isinstance(e, ast.IfExp):
            return self._conditional(e, scope)
        if isinstance(e, ast.Compare):
            sides = [self.value(side, scope) for side in (e.left, *e.comparators)]
            return _compared(e, sides) or compared_with_none(e, sides[0]) or why_unknown(sides)
        if isinstance(e, ast.BoolOp):
            return self._first_that_decides(e, scope)
        if isinstance(e, ast.UnaryOp):
            of = self.value(e.operand, scope)
            return computed(ast.UnaryOp(e.op, _literal(of))) if isinstance(of, Const) else why_unknown([of])
        if isinstance(e, ast.BinOp):
            sides = [self.value(side, scope) for side in (e.left, e.right)]
            known = all(isinstance(side, Const) and not isinstance(side.value, list) for side in sides)
            return computed(ast.BinOp(_literal(sides[0]), e.op, _literal(sides[1]))) if known else why_unknown(sides)
        if isinstance(e, ast.JoinedStr):
            return self._text(e, scope)
        if isinstance(e, COMPREHENSIONS):
            return self.comprehension(e, scope)
        if isinstance(e, (ast.Await, ast.NamedExpr, ast.Starred)):
            return self.value(e.value, scope)
        return None

    def comprehension(self, e: Any, scope: Mapping[str, Value]) -> Value:
        """What it calls is in a loop."""
        inner = dict(scope)
        for generator in e.generators:
            self.value(generator.iter, inner)
            names = [n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)]
            inner.update({name: Unknown(why=LOOP) for name in names})
        with self.doubting(LOOP):
            for part in (e.key, e.value) if isinstance(e, ast.DictComp) else (e.elt,):
                self.value(part, inner)
        return Unknown(why=LOOP)

    def _conditional(self, e: ast.IfExp, scope: Mapping[str, Value]) -> Value:
        test = self.decided(e.test, scope)
        if isinstance(test, Const):
            return self.value(e.body if test.value else e.orelse, scope)
        either: list[Value] = []
        for part in (e.body, e.orelse):
            with self.doubting(CONDITION):
                either.append(self.value(part, scope))
        return why_unknown([test, *either])

    def _first_that_decides(self, e: ast.BoolOp, scope: Mapping[str, Value]) -> Value:
        values = [self.value(part, scope) for part in e.values]
        stops = isinstance(e.op, ast.Or)
        for value in values:
            if not isinstance(value, Const):
                return why_unknown(values)
            if bool(value.value) is stops:
                return value
        return values[-1]

    def _text(self, e: ast.JoinedStr, scope: Mapping[str, Value]) -> Value:
        parts: list[Value] = []
        for part in e.values:
            formatted = isinstance(part, ast.FormattedValue)
            parts.append(self.value(part.value if formatted else part, scope))
            if formatted and (part.format_spec is not None or part.conversion != -1):
                return Unknown(why=NOT_CONSTANT)
        if not all(isinstance(part, Const) for part in parts):
            return why_unknown(parts)
        text = "".join(str(plain(part)) for part in parts)
        return Const(value=text) if len(text) <= 4096 else Unknown(why=NOT_CONSTANT)

    def _list(self, items: Sequence[Value]) -> Value:
        if any(unknown_in(item) for item in items):
            return why_unknown(items)
        made = [plain(item) for item in items]
        self.step(count := size(made))
        return Const(value=made) if count <= MOST_ITEMS else Unknown(why=TOO_MANY)

    def _attribute(self, e: ast.Attribute, scope: Mapping[str, Value]) -> Value:
        base = self.value(e.value, scope)
        if isinstance(base, Dotted):
            return module(f"{base.name}.{e.attr}")
        if isinstance(base, (Config, At)):
            return inside(base, e.attr)
        if isinstance(base, Object):
            found = base.attributes.get(e.attr)
            if isinstance(found, Def) and is_property(found.node):
                return self.own(found, [], {})
            return base.attributes.get(e.attr, Unknown(why=f"'{self.code(e)}' is not set in this script", name=e.attr))
        return Unknown(why=f"'{self.code(e)}' is known only when the script runs", name=e.attr)

    def _subscript(self, e: ast.Subscript, scope: Mapping[str, Value]) -> Value:
        base, key = self.value(e.value, scope), self.value(e.slice, scope)
        if isinstance(base, Items) and isinstance(key, Const) and str(key.value) in base.items:
            return base.items[str(key.value)]
        if isinstance(base, Dotted) and base.name == "os.environ":
            return from_environment([key])
        if isinstance(base, Items) and isinstance(key, Const):
            return base.items.get("**", Unknown(why=f"'{self.code(e)}' is not set in this script"))
        if isinstance(key, Const) and isinstance(key.value, str):
            return Parameter(name=key.value)
        return Unknown(why=f"'{self.code(e)}' is known only when the script runs")

    def _call(self, e: ast.Call, scope: Mapping[str, Value]) -> Value:
        args = [self.value(a, scope) for a in e.args]
        keywords = {k.arg or "**": self.value(k.value, scope) for k in e.keywords}
        if isinstance(e.func, ast.Attribute):
            on = self.value(e.func.value, scope)
            if isinstance(on, Logger):
                if e.func.attr == "setLevel":
                    self._level(on, args, e)
                return Const(value=None)
            if isinstance(on, Items) and e.func.attr in DICT_METHODS:
                return DICT_METHODS[e.func.attr](self, on, args, keywords)
        function = self.value(e.func, scope)
        if isinstance(function, (Def, Object)):
            return self.own(function, args, keywords)
        name = function.name if isinstance(function, (Dotted, Unknown)) else ""
        return self.outside(name, e, args, keywords)

    def outside(self, name: str, e: ast.Call, args: Args, keywords: Keywords) -> Value:
        """What a call of a function gives that is not the script's own."""
        return PYTHON[name](self, e, args, keywords) if name in PYTHON else called(self, name, e, args, keywords)

    def _level(self, logger: Logger, args: Sequence[Value], e: ast.Call) -> None:
        level = args[0] if args else Unknown(why="no level is given")
        name = level.name.removeprefix("logging.") if isinstance(level, Dotted) else str(plain(level))
        if name in ("DEBUG", "INFO", "WARNING", "ERROR") and not self.doubt:
            self.facts.levels[logger.name] = name
        else:
            self.unread(e, self.doubt or "the level is none of DEBUG, INFO, WARNING, ERROR")


def _literal(value: Value) -> ast.expr:
    return ast.Constant(plain(value))


def why_unknown(parts: Sequence[Value]) -> Unknown:
    """Of several parts the first that says why it is not known: the variable of the environment, the argument."""
    return next((part for part in parts if isinstance(part, Unknown)), Unknown(why=NOT_CONSTANT))


def _compared(e: ast.Compare, sides: Sequence[Value]) -> Value | None:
    """None where a side is no constant."""
    values = [plain(side) for side in sides]
    if not all(isinstance(side, Const) for side in sides):
        return None
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


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in node.decorator_list]
    return not {"property", "cached_property"}.isdisjoint(names)


def _get(reader: Analysis, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key = plain(args[0]) if args else None
    default = args[1] if len(args) > 1 else keywords.get("default", Const(value=None))
    return on.items.get(str(key), on.items.get("**", default))


def _update(reader: Analysis, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    given = {name: value for other in args for name, value in spread(other).items()} | with_keywords(keywords)
    on.items.update({name: reader.certain(value, on) for name, value in given.items()})
    return Const(value=None)


def _setdefault(reader: Analysis, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key, value = str(plain(args[0])) if args else "", args[1] if len(args) > 1 else Const(value=None)
    return on.items.setdefault(key, reader.certain(value, on))


def _items(reader: Analysis, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    return on.rounds()


def _pop(reader: Analysis, on: Items, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    key = str(plain(args[0])) if args else ""
    found = on.items.get(key, args[1] if len(args) > 1 else Unknown(why=NOT_CONSTANT))
    if doubt := reader.doubt_of(on):
        on.items.update({key: Unknown(why=doubt)} if key in on.items else {})
    else:
        on.items.pop(key, None)
    return found


def getenv(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return from_environment([*args[:1], *([keywords["default"]] if "default" in keywords else args[1:])])


def converted(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """int(), bool(), str() and float() of a constant; of anything else what is known of that."""
    convert: Mapping[str, Callable[[Any], Any]] = {"int": int, "bool": bool, "str": str, "float": float}
    name = e.func.id if isinstance(e.func, ast.Name) else ""
    if len(args) != 1 or not isinstance(args[0], Const):
        return args[0] if len(args) == 1 and isinstance(args[0], Unknown) else Unknown(why=NOT_CONSTANT)
    try:
        return Const(value=convert[name](args[0].value))
    except (TypeError, ValueError, OverflowError):
        return Unknown(why=NOT_CONSTANT)


def namespace(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if "**" in keywords and not isinstance(keywords["**"], Items):
        return Unknown(why="some of its fields are not constants")
    return Object(name="SimpleNamespace", attributes=with_keywords(keywords))


def _get_logger(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[0]) if args else ""
    return Logger(name=name) if isinstance(name, str) else Unknown(why="a logger of unknown name")


def _setattr(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if len(args) == 3 and isinstance(args[0], (Config, At)):
        name = plain(args[1])
        if isinstance(name, str):
            reader.option(args[0], name, args[2], e)
        else:
            reader.unread(e, "the option's name is not a constant")
    return Const(value=None)


def _getattr(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[1]) if len(args) > 1 else None
    if isinstance(name, str) and isinstance(args[0], (Config, At)):
        return inside(args[0], name)
    return Unknown(why="getattr() is known only when the script runs")


def _dict(reader: Analysis, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return Items(items={**(spread(args[0]) if args else {}), **with_keywords(keywords)}, branch=reader.branch)


def _partial(reader: Expressions, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """functools.partial(torch.compile, backend=…) says all that the call will say; the model comes later."""
    if args and isinstance(args[0], Dotted):
        return reader.outside(args[0].name, e, args[1:], keywords)
    return Unknown(why="functools.partial() is known only when the script runs")


DICT_METHODS: Mapping[str, Callable[[Any, Items, Sequence[Value], Mapping[str, Value]], Value]] = {
    "get": _get,
    "update": _update,
    "setdefault": _setdefault,
    "items": _items,
    "pop": _pop,
}
PYTHON: Mapping[str, Callable[[Any, ast.Call, Args, Keywords], Value]] = {
    "os.getenv": getenv,
    "os.environ.get": getenv,
    "types.SimpleNamespace": namespace,
    "argparse.Namespace": namespace,
    "logging.getLogger": _get_logger,
    "setattr": _setattr,
    "getattr": _getattr,
    "dict": _dict,
    "functools.partial": _partial,
    **dict.fromkeys(("int", "bool", "str", "float"), converted),
}
"""Functions of Python itself."""
