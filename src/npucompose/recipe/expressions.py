"""Expressions of a script: names, constants, what is put together of known values, and calls.

What is not known keeps its reason: a comparison of an environment variable is not known because of that variable.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from attrs import define, evolve, field

from npucompose.recipe.calls import Args, Keywords, called, compared_with_none
from npucompose.recipe.paths import Paths
from npucompose.recipe.python_calls import (
    DICT_METHODS,
    LONGEST,
    PYTHON,
    applied,
    compared,
    computed,
    held_in,
    why_unknown,
)
from npucompose.recipe.values import (
    CONDITION,
    LOOP,
    MISSING,
    MOST_ITEMS,
    NOT_CONSTANT,
    REST,
    TOO_MANY,
    At,
    Cells,
    Config,
    Const,
    Def,
    Dotted,
    Items,
    Object,
    Partial,
    Scope,
    Unknown,
    Value,
    from_environment,
    inside,
    is_plain,
    may_miss,
    merge,
    module,
    named,
    plain,
    truth,
    why_not,
)

SETTINGS = ("torchair", "npugraph_ex", "torch_npu", "torch.npu", "torch._dynamo")
"""Modules whose settings decide what is compiled: an assignment to one is never passed over."""
LIBRARIES = (
    "torch.", "torchair.", "npugraph_ex.", "torch_npu.", "os.", "sys.", "json.", "logging.", "math.", "time.", "copy.",
    "warnings.", "pprint.", "numpy.", "typing.", "dataclasses.", "abc.", "enum.", "collections.", "pathlib.",
)  # fmt: skip
"""Modules whose functions change no dict, list or object of the script that they are given."""
READING = frozenset(
    [
        "print",
        "len",
        "str",
        "repr",
        "format",
        "isinstance",
        "issubclass",
        "hasattr",
        "type",
        "id",
        "range",
        "zip",
        "enumerate",
        "list",
        "tuple",
        "set",
        "frozenset",
        "sorted",
        "reversed",
        "min",
        "max",
        "sum",
        "any",
        "all",
        "abs",
        "round",
        "iter",
        "next",
        "hash",
        "vars",
        "callable",
        "super",
        "getattr",
        "int",
        "bool",
        "float",
    ]
)
"""Functions of Python that change nothing that they are given."""


@define(eq=False)
class Expressions(Paths, ABC):
    """The values of expressions; what a function or class of the script gives is for who knows statements."""

    assumed: Mapping[str, Any] = field(factory=dict)
    """{text of a condition or name: what it is taken for}."""
    used: dict[str, int] = field(factory=dict)
    """{assumption: the line where it was taken first}."""
    lambdas: dict[ast.Lambda, ast.FunctionDef] = field(factory=dict)
    asked: dict[str, int] = field(factory=dict)
    """{text of a condition that is not certain: its line}."""

    @abstractmethod
    def own(self, made: Def | Object, e: ast.AST, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """What a call of the script's own function or class gives."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, scope: Scope, s: ast.AST) -> None:
        """An assignment to a name, an attribute or an item."""

    def value(self, e: ast.expr, scope: Scope) -> Value:
        self.step()
        found = EXPRESSIONS.get(type(e), Expressions._composed)(self, e, scope)
        if self.assumed and isinstance(found, Unknown) and (text := self.code(e)) in self.assumed:
            self.used.setdefault(text, e.lineno)
            return Const(value=self.assumed[text], node=e)
        return found

    @abstractmethod
    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Value:
        """A function of the script."""

    def condition(self, e: ast.expr) -> str:
        text = self.short(e)
        self.asked.setdefault(text, e.lineno)
        return f"{CONDITION} (line {e.lineno}: {text})"

    def _name(self, e: ast.Name, scope: Scope) -> Value:
        found = scope.get(e.id)
        return found if found is not MISSING else Unknown(why=f"'{e.id}' is not a constant of this script", name=e.id)

    def _dict(self, e: ast.Dict, scope: Scope) -> Value:
        pairs = [
            (self.value(k, scope) if k else None, self.value(v, scope)) for k, v in zip(e.keys, e.values, strict=True)
        ]
        return self.filled(self.made(e, Items), pairs)

    def _lambda(self, e: ast.Lambda, scope: Scope) -> Value:
        returned = ast.copy_location(ast.Return(value=e.body), e)
        node = ast.FunctionDef(name="lambda", args=e.args, body=[returned], decorator_list=[])
        return self.function(self.lambdas.setdefault(e, ast.copy_location(node, e)), scope)

    def _either(self, e: ast.IfExp, scope: Scope) -> Value:
        held = truth(self.value(e.test, scope))
        if held is None:
            return self._one_of([e.body, e.orelse], e.test, scope)
        return self.value(e.body if held else e.orelse, scope)

    def _walrus(self, e: ast.NamedExpr, scope: Scope) -> Value:
        self.assign(e.target, self.value(e.value, scope), scope, e)
        return self.value(e.target, scope)

    def _composed(self, e: ast.expr, scope: Scope) -> Value:
        """Every part is read, for it may call something."""
        parts = [self.value(part, scope) for part in ast.iter_child_nodes(e) if isinstance(part, ast.expr)]
        return self._computed(e, parts) if parts else Unknown(why=NOT_CONSTANT)

    def _computed(self, e: ast.expr, parts: Sequence[Value]) -> Value:
        found: Value | None = None
        if isinstance(e, (ast.Await, ast.Starred)):
            return parts[0]
        if isinstance(e, ast.Compare):
            found = compared(e, parts) or compared_with_none(e, parts[0])
        elif isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Not):
            held = truth(parts[0])
            found = None if held is None else Const(value=not held)
        elif isinstance(e, ast.FormattedValue) and len(parts) == 1 and e.conversion == -1 and is_plain(parts[0]):
            found = applied(str, *parts)
        elif not all(isinstance(part, Const) for part in parts):
            found = None
        elif isinstance(e, (ast.UnaryOp, ast.BinOp)):
            found = applied(partial(computed, e.op), *parts)
        elif isinstance(e, ast.JoinedStr) and sum(len(plain(part)) for part in parts) <= LONGEST:
            found = applied(lambda *texts: "".join(texts), *parts)
        return evolve(found, node=e) if isinstance(found, Const) else found or why_unknown(parts)

    def _one_of(self, ways: Sequence[ast.expr | Value], e: ast.expr, scope: Scope) -> Value:
        """One of several expressions, as a condition decides."""
        found: list[Value] = []

        def take(way: ast.expr | Value) -> None:
            found.append(self.value(way, scope) if isinstance(way, ast.expr) else way)

        why = self.condition(e)
        self.split(why, *[partial(take, way) for way in ways])
        return merge(found, why)

    def _first_that_decides(self, e: ast.BoolOp, scope: Scope) -> Value:
        found = self.value(e.values[0], scope)
        for before, part in pairwise(e.values):
            held = truth(found)
            if held is isinstance(e.op, ast.Or):
                break
            found = self._one_of([found, part], before, scope) if held is None else self.value(part, scope)
        return found

    def _comprehension(self, e: Any, scope: Scope) -> Value:
        """What it calls is in a loop."""
        inner = Scope(names=Cells(self.now, bound=True), parent=scope)
        found: list[Value] = []

        def body() -> None:
            for generator in e.generators:
                over = self.value(generator.iter, inner)
                self.assign(generator.target, Unknown(why=LOOP, either=held_in([over])), inner, e)
                for test in generator.ifs:
                    self.value(test, inner)
            found[:] = [
                self.value(part, inner) for part in ((e.key, e.value) if isinstance(e, ast.DictComp) else (e.elt,))
            ]

        self.repeat(LOOP, body)
        return Unknown(why=LOOP, either=held_in(found))

    def filled(self, made: Items, pairs: Iterable[tuple[Value | None, Value]]) -> Items:
        """A dict with more entries, `**other` as (None, other)."""
        for key, value in pairs:
            if isinstance(key, Const):
                self.put(made.cells, str(key.value), named(value, str(key.value)))
            elif key is None and isinstance(value, Items) and not value.listed and REST not in value.cells:
                self.step(len(value.cells))
                for name, item in value.cells.items():
                    before = [made.cells.get(name, MISSING)] if may_miss(item) else []
                    self.put(made.cells, name, merge([*before, item], str(item)))
            else:
                self.spoil(made.cells, "some of its keys are not constants", holds=held_in([value]))
        return made

    def listed(self, site: ast.AST, items: Sequence[Value]) -> Value:
        made = self.made(site, Items, listed=True)
        for item in items:
            self.put(made.cells, str(len(made.cells)), item)
        why = why_not(made)
        self.step(MOST_ITEMS if why == TOO_MANY else 1 + len(items))
        return Unknown(why=why) if why == TOO_MANY else made

    def _list(self, e: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Value:
        items = [self.value(item, scope) for item in e.elts]
        if any(isinstance(item, ast.Starred) for item in e.elts):
            return Unknown(why=NOT_CONSTANT, either=held_in(items))
        return self.listed(e, items)

    def _attribute(self, e: ast.Attribute, scope: Scope) -> Value:
        return self.each(self.value(e.value, scope), lambda base: self.attribute(base, e))

    def attribute(self, base: Value, e: ast.Attribute) -> Value:
        if isinstance(base, Dotted):
            return module(f"{base.name}.{e.attr}")
        if isinstance(base, (Config, At)):
            return inside(base, e.attr)
        if not isinstance(base, Object):
            return Unknown(why=f"'{self.code(e)}' is known only when the script runs", name=e.attr)
        found = base.found(e.attr) if e.attr != "__class__" else base.cls or base
        if not isinstance(found, Def) or (base.cells.get(e.attr) is found and base.cls is not None):
            missing = Unknown(
                why=f"'{self.code(e)}' is not set in this script", name=e.attr, either=(base.real or base,)
            )
            return missing if found is MISSING else found
        kinds = decorators(found.node)
        bound = found if "staticmethod" in kinds or base.cls is None else evolve(found, owner=base.real or base)
        bound = evolve(found, owner=base.cls or base) if "classmethod" in kinds else bound
        if kinds & {"setter", "deleter"}:
            return Unknown(why=f"'{self.code(e)}' is a property that is set", name=e.attr)
        return self.own(bound, e, [], {}) if kinds & {"property", "cached_property"} else bound

    def _subscript(self, e: ast.Subscript, scope: Scope) -> Value:
        key = self.value(e.slice, scope)
        return self.each(self.value(e.value, scope), lambda base: self.item(base, key, e))

    def item(self, base: Value, key: Value, e: ast.Subscript) -> Value:
        if isinstance(base, Items) and isinstance(key, Const):
            at = key.value
            at = at + len(base.cells) if base.listed and isinstance(at, int) and at < 0 else at
            unset = Unknown(why=f"'{self.code(e)}' is not set in this script")
            return base.cells.get(str(at), base.cells.get(REST, unset))
        if isinstance(base, Dotted) and base.name == "os.environ":
            return from_environment([key])
        if isinstance(key, Const) and isinstance(key.value, str):
            return Unknown(why=NOT_CONSTANT, name=key.value, argument=True)
        return Unknown(why=f"'{self.code(e)}' is known only when the script runs", either=held_in([base]))

    # Calls.

    def _call(self, e: ast.Call, scope: Scope) -> Value:
        on = self.value(e.func.value, scope) if isinstance(e.func, ast.Attribute) else None
        function = self.value(e.func, scope) if on is None else on
        args = [self.value(a, scope) for a in e.args if not isinstance(a, ast.Starred)]
        rest = [self.value(a.value, scope) for a in e.args if isinstance(a, ast.Starred)]
        given = [(k.arg, self.value(k.value, scope)) for k in e.keywords]
        keywords = {name: value for name, value in given if name is not None}
        for value in [value for name, value in given if name is None]:
            if isinstance(value, Items) and REST not in value.cells:
                keywords |= value.cells
            else:
                rest.append(value)
        if rest:
            keywords[REST] = Unknown(why="some of its arguments are not constants", either=held_in(rest))
        if isinstance(function, Unknown) and function.name in ("exec", "globals", "locals"):
            self.cloud(scope, f"line {e.lineno} may set it")
        if on is None:
            return self.each(function, lambda one: self.invoke(one, e, args, keywords))
        return self.each(on, lambda one: self._method(one, e, args, keywords))

    def _method(self, on: Value, e: Any, args: Args, keywords: Keywords) -> Value:
        name = e.func.attr
        if isinstance(on, Items) and name in DICT_METHODS:
            return DICT_METHODS[name](self, e, on, args, keywords)
        if isinstance(on, (Config, At)):
            self.unread(e, "no YAML is known for a call on a configuration")
            self.escape(on, f"line {e.lineno} calls {name} of it")
            return Unknown(why=NOT_CONSTANT)
        function = self.attribute(on, e.func)
        if isinstance(function, Unknown) and (
            isinstance(on, (Items, Unknown)) or (isinstance(on, Object) and on.is_foreign)
        ):
            self.escape(on, f"line {e.lineno} calls {name} of it")
        return self.each(function, lambda one: self.invoke(one, e, args, keywords))

    def invoke(self, function: Value, e: Any, args: Args, keywords: Keywords) -> Value:
        if isinstance(function, (Def, Object)):
            return self.own(function, e, args, keywords)
        if isinstance(function, Partial):
            self.seen.add(function.node)
            given = {**function.keywords, **keywords}
            return self.each(function.function, lambda one: self.invoke(one, e, [*function.args, *args], given))
        name = function.name if isinstance(function, (Dotted, Unknown)) else ""
        built_in = isinstance(function, Dotted) or (isinstance(e, ast.Call) and isinstance(e.func, ast.Name))
        if name in PYTHON and built_in:
            return PYTHON[name](self, e, args, keywords)
        if not (name in READING and built_in) and not name.startswith(LIBRARIES):
            for value in (*args, *keywords.values()):
                self.escape(value, f"line {e.lineno} hands it to code that is not in this script")
        found = called(self, name, e, args, keywords)
        opaque = isinstance(found, Unknown) and not found.either
        return evolve(found, either=held_in([*args, *keywords.values()])) if opaque else found

    def store(self, base: Value, name: str, value: Value, s: ast.AST) -> None:
        """`base.name = value`"""
        if isinstance(base, (Config, At)):
            self.option(base, name, value, s)
        elif isinstance(base, Object):
            method = base.cls.found(name) if base.cls is not None else MISSING
            hidden = Unknown(why=f"a property of {base.name} takes it") if isinstance(method, Def) else value
            self.put(base.cells, name, named(hidden, name))
        elif isinstance(base, Dotted) and base.name.startswith(SETTINGS):
            self.unread(s, "no YAML is known for it")
        elif isinstance(base, Unknown) and _looks_like_an_option(self.code(s)):
            self.unread(s, "it is not known which configuration this is")


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """The last words of their names."""
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in node.decorator_list}


def _looks_like_an_option(text: str) -> bool:
    """`cfg.experimental_config.frozen_parameter = True` of an unknown `cfg`; not `args.mode = 1`."""
    return any(f".{group}." in text for group in ("experimental_config", "debug", "ge_config", "dump_config", "export"))


EXPRESSIONS: Mapping[type[ast.expr], Callable[[Expressions, Any, Scope], Value]] = {
    ast.Constant: lambda reader, e, scope: Const(value=e.value, node=e),
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.Dict: Expressions._dict,
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), Expressions._list),
    ast.Call: Expressions._call,
    ast.Lambda: Expressions._lambda,
    ast.IfExp: Expressions._either,
    ast.BoolOp: Expressions._first_that_decides,
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), Expressions._comprehension),
    ast.NamedExpr: Expressions._walrus,
}
"""All others are computed of their parts, where those are constants."""
