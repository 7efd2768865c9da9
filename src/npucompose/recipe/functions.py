"""Functions and classes of a script: what a call of one gives, and those that no line calls."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

from attrs import define, evolve, field

from npucompose.recipe.expressions import LIBRARIES, Expressions, decorators
from npucompose.recipe.paths import NEVER
from npucompose.recipe.python_calls import held_in
from npucompose.recipe.values import (
    CONDITION,
    MISSING,
    NOT_CONSTANT,
    REST,
    Cells,
    Const,
    Def,
    Dotted,
    Filter,
    Items,
    Object,
    Partial,
    Scope,
    Unknown,
    Value,
    merge,
    plain,
)
from npucompose.recipe.vendor_options import is_node_filter

DEEPEST = 20

CIRCLE = "the script's functions call each other in a circle"

SEVERAL = "instances have several values of it"

DECORATORS = ("staticmethod", "classmethod", "property", "setter", "deleter")

ANY = {REST: Unknown(why=NOT_CONSTANT)}
"""The arguments of a call that is not in the script."""


@define(eq=False)
class Functions(Expressions, ABC):
    """What calls of the script's own functions and classes do."""

    open: list[ast.AST] = field(factory=list)
    """The functions that are being read: a call of one from inside itself is not followed."""
    again: set[ast.AST] = field(factory=set)
    """Those of them that call themselves."""
    start: tuple[int, int] = (0, 0)
    """Of the function that is read: its place on the trail, and how many doubts there were."""
    finals: list[tuple[list[ast.stmt], Scope]] = field(factory=list)
    """The finally clauses around this place, in this function."""
    classes: list[Object] = field(factory=list)

    @abstractmethod
    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Read statements one after the other."""

    def _class(self, s: ast.ClassDef, scope: Scope) -> Value:
        bases = [self.value(base, scope) for base in s.bases]
        own = tuple(base for base in bases if isinstance(base, Object))
        foreign = [b for b in bases if not isinstance(b, Object) and not _is_of_a_library(b)]
        named_fields = [f.target.id for f in s.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        is_data = bool(decorators(s)) or any(isinstance(base, Dotted) for base in bases)
        fields = (*(name for base in own for name in base.fields), *(named_fields if is_data else ()))
        made = self.made(s, Object, name=s.name, bases=own, foreign=bool(foreign), fields=fields, node=s)
        for decorator in s.decorator_list:
            self.value(decorator, scope)
        self.block(s.body, Scope(names=made.cells, parent=scope, home=made))
        self.classes.append(made)
        return made

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Value:
        spec = node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        pairs = [*zip(reversed(names), reversed(spec.defaults), strict=False)]
        pairs += [(a.arg, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
        defaults = {name: self.value(default, scope) for name, default in pairs}
        around = scope if scope.home is None else scope.parent or scope
        found: Value = Def(node=node, scope=around, home=scope.home, defaults=defaults, maybe=_yields(node))
        self.defs.append(found)
        for decorator in reversed(node.decorator_list):
            by = self.value(decorator, scope)
            if isinstance(by, (Partial, Def)) or (isinstance(by, Dotted) and by.name == "torch.compile"):
                given = self.invoke(by, _call_of(decorator), [found], {})
                found = given if isinstance(by, Def) else found
            elif isinstance(found, Def) and not self._is_known(decorator, scope):
                found = evolve(found, maybe=f"a decorator that is not in this script decides (line {decorator.lineno})")
        return found

    def _is_known(self, decorator: ast.expr, scope: Scope) -> bool:
        """Whether a decorator leaves a function what it is."""
        by = self.value(decorator.func if isinstance(decorator, ast.Call) else decorator, scope)
        built_in = isinstance(by, Unknown) and by.name in DECORATORS
        return built_in or (isinstance(by, Dotted) and by.name.startswith((*LIBRARIES, "functools.", "contextlib.")))

    def own(self, made: Def | Object, e: ast.AST, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        if isinstance(made, Object):
            return self._instance(made, e, args, keywords)
        if is_node_filter(made.node):
            return filter_of(args)
        if not made.maybe:
            return self.call(made, e, args, keywords)
        found: list[Value] = []
        self.split(made.maybe, lambda: found.append(self.call(made, e, args, keywords)), lambda: None)
        return Unknown(why=made.maybe, either=held_in(found))

    def _instance(self, cls: Object, e: ast.AST, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        made: Object = self.made(e, Object, name=cls.name, cls=cls)
        cls.instances.setdefault(id(made), made)
        init, after = (cls.found(name) for name in ("__init__", "__post_init__"))
        if isinstance(init, Def):
            self.call(evolve(init, owner=made), e, args, keywords)
        elif cls.is_foreign:
            for value in (made, *args, *keywords.values()):
                self.escape(value, f"line {getattr(e, 'lineno', 0)}: a class that is not in this script decides")
        else:
            any_field = dict.fromkeys(cls.fields if REST in keywords else (), keywords.get(REST, MISSING))
            for name, value in {**any_field, **dict(zip(cls.fields, args, strict=False)), **keywords}.items():
                if name != REST:
                    self.put(made.cells, name, value)
        if isinstance(after, Def):
            self.call(evolve(after, owner=made), e, (), {})
        special = [cls.found(name) for name in ("__new__", "__getattr__", "__getattribute__", "__setattr__")]
        plainly = all(method is MISSING for method in special)
        return made if plainly else Unknown(why=f"{cls.name} has attributes of its own making", either=(made,))

    def call(self, made: Def, e: ast.AST, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """The script's own function, read with these arguments; what it returns."""
        if len(self.open) >= DEEPEST or made.node in self.open:
            if made.node in self.open:
                self.again.add(made.node)
            else:
                self.cloud(made.scope, CIRCLE)
            for value in (*args, *keywords.values(), *([made.owner] if made.owner else [])):
                self.escape(value, CIRCLE)
            return Unknown(why=CIRCLE)
        self.seen.add(made.node)
        self.step()
        held = self.start, self.exits, self.finals, self.calls, self.leaves
        mark, written, doubts = len(self.trail), len(self.log), len(self.doubts)
        self.now = born = self.now + 1
        self.start, self.exits, self.finals, self.calls = (mark, doubts), [], [], (*self.calls, e)
        self.open.append(made.node)
        names = Cells(self.now, bound=True, values=self._bound(made, args, keywords))
        self.block(made.node.body, Scope(names=names, parent=made.scope))  # what it raises ends the reading
        if not self.dead:
            self.exits.append((self.left(mark), Const(value=None), self.doubt if len(self.doubts) > doubts else ""))
        exits, dead, self.dead = self.exits, self.dead, not self.exits
        why = next((why for _, _, why in exits if why), CONDITION)
        if dead or len(exits) > 1:
            self.undo(mark, born)
            self.join([end for end, _, _ in exits], born, why)
        del self.doubts[doubts:]
        self.open.pop()
        self.start, self.exits, self.finals, self.calls, self.leaves = held
        if made.node in self.again:
            self.again.discard(made.node)
            self.widen(self.log[written:], born, CIRCLE)
        return merge([value for _, value, _ in exits], why)

    def _bound(self, made: Def, args: Sequence[Value], keywords: Mapping[str, Value]) -> dict[str, Value]:
        spec, owner = made.node.args, made.owner
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        every = [*names, *(a.arg for a in spec.kwonlyargs)]
        bound: dict[str, Value] = {name: Unknown(why=NOT_CONSTANT, name=name, argument=True) for name in every}
        bound |= made.defaults if REST not in keywords else {}
        given = [owner, *args] if owner is not None else list(args)
        pairs = [*zip(names, given, strict=False), *((k, v) for k, v in keywords.items() if k in every)]
        bound |= {k: evolve(v, name=k, argument=True) if isinstance(v, Unknown) else v for k, v in pairs}
        if spec.vararg is not None:
            bound[spec.vararg.arg] = Unknown(
                why=NOT_CONSTANT, name=spec.vararg.arg, either=held_in(given[len(names) :])
            )
        if spec.kwarg is not None:
            more = [(None if k == REST else Const(value=k), v) for k, v in keywords.items() if k not in every]
            bound[spec.kwarg.arg] = self.filled(self.made(made.node, Items), more)
        if owner is not None and made.home is not None:
            above = Object(name="super", bases=made.home.bases, foreign=made.home.foreign)
            view = Object(name="super", cells=owner.cells, cls=above, real=owner.real or owner)
            bound["super"] = Partial(function=Dotted(name="super()"), node=made.node, args=(view,), keywords={})
        return bound

    def escape(self, value: Value, why: str, seen: set[int] | None = None) -> None:
        """A function that code outside of this script has may be called by it."""
        if not isinstance(value, Def):
            super().escape(value, why, seen)
        elif value.node not in self.open:
            self.split(why, lambda: self.call(value, value.node, [], ANY), lambda: None)

    def uncalled(self, used: Mapping[str, int]) -> None:
        """Bodies that no call reached (a library of functions, a class that others use), `used` ones last.

        They may be called in any order and any number of times: what one of them sets is certain in none of the others.
        """
        for cls in self.classes:  # grows while nested ones are found
            if not cls.instances:
                self.split(NEVER, partial(self._instance, cls, cls.node, [], ANY), lambda: None)

        def body() -> None:
            for last in (False, True):
                for made in self.defs:
                    name = made.node.name if isinstance(made, Def) else ""
                    if made.node not in self.seen and (last or name not in used):
                        self.seen.add(made.node)
                        self.split(NEVER, partial(self._alone, made), lambda: None)

        self.repeat(NEVER, body)

    def _alone(self, made: Def | Partial) -> None:
        if isinstance(made, Partial):
            self.invoke(made, made.node, [], {})
            return
        home = made.home
        if home is not None and "staticmethod" not in decorators(made.node):
            self.step(len(home.instances))
            if len(home.instances) != 1:
                owner = self.made(made.node, Object, name=home.name, cls=home)
                for name in {name for one in home.instances.values() for name in one.cells}:
                    self.put(owner.cells, name, merge([one.found(name) for one in home.instances.values()], SEVERAL))
            else:
                (owner,) = home.instances.values()
            made = evolve(made, owner=owner)
        self.call(made, made.node, [], ANY)


def filter_of(args: Sequence[Value]) -> Value:
    patterns = plain(args[0]) if args else None
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return Filter(patterns=tuple(patterns))
    return Unknown(why="the patterns of the filter are not constants")


def _is_of_a_library(base: Value) -> bool:
    return (isinstance(base, Dotted) and base.name.startswith(LIBRARIES)) or (
        isinstance(base, Unknown) and base.name in ("object", "Exception", "str", "dict", "list")
    )


def _call_of(decorator: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(func=decorator, args=[], keywords=[]), decorator)


def _yields(node: ast.AST) -> str:
    """Why the body of a generator may not be run; empty for any other function."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return "it is in a generator"
        nested = isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
        if not nested and (why := _yields(part)):
            return why
    return ""
