"""A script that builds a CompilerConfig, read as a syntax tree: what it would set, and which lines say something else.

Nothing is run and nothing is imported. Assignments are followed through names, aliases, attributes of `self`, and
calls of the script's own functions. What is not the same on every path (`paths`) is not guessed: it is listed.
Everything that has nothing to do with TorchAir is passed over in silence.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from attrs import define, evolve, field

from npucompose.recipe.calls import ENVIRONMENT, OVER_ARGUMENT, PATCHING_MODULE, of_the_vendor
from npucompose.recipe.expressions import LIBRARIES, Expressions, decorators
from npucompose.recipe.python_calls import held_in
from npucompose.recipe.values import (
    CONDITION,
    LOOP,
    MISSING,
    NOT_CONSTANT,
    REST,
    At,
    Const,
    Def,
    Dotted,
    Facts,
    Filter,
    Items,
    Object,
    Partial,
    Scope,
    Unknown,
    Value,
    elements,
    merge,
    module,
    named,
    plain,
    truth,
)
from npucompose.recipe.vendor_options import is_node_filter
from npucompose.vendor.versions import REFERENCE

DEEPEST = 20
MOST_STEPS = 300_000
"""Statements and expressions, each counted as often as a call leads to it, beside those of the script itself."""
CIRCLE = "the script's functions call each other in a circle"
NEVER = "no line of the script calls it"
SEVERAL = "instances have several values of it"
TRY_STAR: Any = getattr(ast, "TryStar", ast.Try)
"""Of Python 3.11."""
DECORATORS = ("staticmethod", "classmethod", "property", "setter", "deleter")
ANY = {REST: Unknown(why=NOT_CONSTANT)}
"""The arguments of a call that is not in the script."""


def read(tree: ast.Module, torch_npu: str = REFERENCE, assumed: Mapping[str, Any] | None = None) -> Facts:
    """The facts of a whole script for that torch_npu; functions that nobody calls are read too, after all else."""
    return reading(tree, torch_npu, assumed).facts


def reading(tree: ast.Module, torch_npu: str = REFERENCE, assumed: Mapping[str, Any] | None = None) -> Reader:
    """A reader that has read a script: its facts, its conditions, and the assumptions that were needed."""
    nodes = list(ast.walk(tree))
    reader = Reader(torch_npu, MOST_STEPS + 10 * len(nodes), assumed=assumed or {})
    scope = Scope(names=reader.cells(bound=True))
    scope.names["__name__"] = Const(value="__main__")
    reader.block(tree.body, scope)
    reader.dead = False
    reader.doubts.clear()
    reader.uncalled(Counter(n.id if isinstance(n, ast.Name) else n.attr for n in nodes if _is_use(n)))
    reader.settle()
    reader.facts.unread = sorted(dict.fromkeys(reader.facts.unread), key=lambda u: u.line)
    return reader


@define(eq=False)
class Reader(Expressions):
    """Statements, assignments and functions of a script, one after the other."""

    open: list[ast.AST] = field(factory=list)
    """The functions that are being read: a call of one from inside itself is not followed."""
    again: set[ast.AST] = field(factory=set)
    """Those of them that call themselves."""
    start: tuple[int, int] = (0, 0)
    """Of the function that is read: its place on the trail, and how many doubts there were."""
    finals: list[tuple[list[ast.stmt], Scope]] = field(factory=list)
    """The finally clauses around this place, in this function."""
    classes: list[Object] = field(factory=list)

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            if self.dead:
                return
            self.step()
            self.statement(statement, scope)

    def statement(self, s: ast.stmt, scope: Scope) -> None:
        if isinstance(s, (ast.Import, ast.ImportFrom)):
            self._import(s, scope)
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._bind(scope, s.name, self.function(s, scope))
        elif isinstance(s, ast.ClassDef):
            self._bind(scope, s.name, self._class(s, scope))
        elif isinstance(s, (ast.Assign, ast.AnnAssign)):
            value = self.value(s.value, scope) if s.value is not None else None
            for target in s.targets if isinstance(s, ast.Assign) else [s.target]:
                if value is not None:
                    self.assign(target, value, scope, s)
        elif isinstance(s, ast.AugAssign):
            before, why = self.value(_loaded(s.target), scope), "it is computed from what it was"
            if not isinstance(before, At):
                self.escape(before, why)
            held = held_in([before, self.value(s.value, scope)])
            self.assign(s.target, Unknown(why=why, either=held), scope, s)
        elif isinstance(s, ast.Expr):
            self.value(s.value, scope)
        elif isinstance(s, ast.Delete):
            for target in s.targets:
                self._delete(target, scope, s)
        elif isinstance(s, (ast.Global, ast.Nonlocal)):
            at = scope.top() if isinstance(s, ast.Global) else scope.parent
            for name in s.names:
                while isinstance(s, ast.Nonlocal) and at is not None and name not in at.names:
                    at = at.parent
                scope.elsewhere[name] = at or scope
        else:
            self._flow(s, scope)

    def _flow(self, s: ast.stmt, scope: Scope) -> None:
        if isinstance(s, ast.If):
            self._if(s, scope)
        elif isinstance(s, (ast.For, ast.AsyncFor)):
            self._for(s, scope)
        elif isinstance(s, ast.While):
            self.repeat(LOOP, lambda: (self.value(s.test, scope), self.block(s.body, scope)))
            self._otherwise(s, scope)
        elif isinstance(s, (ast.With, ast.AsyncWith)):
            self._with(s, scope)
        elif isinstance(s, (ast.Try, TRY_STAR)):
            self._try(s, scope)
        elif isinstance(s, ast.Match):
            self._match(s, scope)
        elif isinstance(s, ast.Return):
            value = self.value(s.value, scope) if s.value else Const(value=None)
            for body, around in reversed(self.finals):
                self.block(body, around)
            mark, doubts = self.start
            self.exits.append((self.left(mark), value, self.doubt if len(self.doubts) > doubts else ""))
            self._leave()
        elif isinstance(s, (ast.Break, ast.Continue)):
            self._leave()
        else:
            for part in ast.iter_child_nodes(s):  # raise, assert
                if isinstance(part, ast.expr):
                    self.value(part, scope)
            self.dead = isinstance(s, ast.Raise)

    def _leave(self) -> None:
        self.leaves, self.dead = self.leaves + 1, True

    def _if(self, s: ast.If, scope: Scope) -> None:
        """An `elif` is a way of the same branch, so that a thousand of them lie no deeper than one."""
        ways: list[list[ast.stmt]] = []
        whys: list[str] = []
        rest: list[ast.stmt] = [s]
        while len(rest) == 1 and isinstance(first := rest[0], ast.If):
            held = truth(self.value(first.test, scope))
            if held is None:
                ways.append(first.body)
                whys.append(self.condition(first.test))
            rest = first.body if held else first.orelse
            if held:
                break
        if ways:
            self.split(whys[0], *[partial(self.block, way, scope) for way in (*ways, rest)])
        else:
            self.block(rest, scope)

    def _for(self, s: ast.For | ast.AsyncFor, scope: Scope) -> None:
        """Over a constant list or the items of a dict of the script: round for round; else its body may not be run."""
        over = self.value(s.iter, scope)
        rounds = elements(over)
        if rounds is not None and not any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(s)):
            calls = self.calls
            for number, value in enumerate(rounds):
                self.calls = (*calls, number)
                self.assign(s.target, value, scope, s)
                self.block(s.body, scope)
            self.calls = calls
        else:
            argument = isinstance(over, Unknown) and over.argument
            part = evolve(over, either=held_in([over])) if argument else Unknown(why=LOOP, either=held_in([over]))

            def body() -> None:
                self.assign(s.target, part, scope, s)
                self.block(s.body, scope)

            self.repeat(OVER_ARGUMENT if argument else LOOP, body)
        self._otherwise(s, scope)

    def _otherwise(self, s: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        """The else of a loop, which a break leaves out."""
        if any(isinstance(n, ast.Break) for n in ast.walk(s)):
            self.split(LOOP, partial(self.block, s.orelse, scope), lambda: None)
        else:
            self.block(s.orelse, scope)

    def _with(self, s: ast.With | ast.AsyncWith, scope: Scope) -> None:
        contexts = [self.value(item.context_expr, scope) for item in s.items]
        for item, value in zip(s.items, contexts, strict=True):
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope, s)
        body = partial(self.block, s.body, scope)
        if any("suppress" in self.code(item.context_expr) for item in s.items):
            self.attempt(body, [lambda: None], lambda: None)
        else:
            body()
        for value in contexts:
            if isinstance(value, Unknown):
                self.escape(value, f"line {s.lineno} hands it to code that is not in this script")

    def _try(self, s: Any, scope: Scope) -> None:
        self.finals.append((s.finalbody, scope))
        handlers = [partial(self._handler, handler, scope) for handler in s.handlers]
        body, otherwise = partial(self.block, s.body, scope), partial(self.block, s.orelse, scope)
        self.attempt(body, handlers, otherwise)
        self.finals.pop()
        dead, self.dead = self.dead, False
        self.block(s.finalbody, scope)
        self.dead = self.dead or dead

    def _handler(self, handler: ast.ExceptHandler, scope: Scope) -> None:
        if handler.name:
            self._bind(scope, handler.name, Unknown(why="it is an exception"))
        self.block(handler.body, scope)

    def _match(self, s: ast.Match, scope: Scope) -> None:
        subject = self.value(s.subject, scope)

        def case(one: ast.match_case) -> None:
            for node in ast.walk(one.pattern):
                name = getattr(node, "name", None) or getattr(node, "rest", None)
                if isinstance(node, ast.pattern) and isinstance(name, str):
                    self._bind(scope, name, Unknown(why=CONDITION, either=held_in([subject])))
            self.block(one.body, scope)

        ways: list[Any] = [partial(case, one) for one in s.cases]
        last = s.cases[-1]
        all_taken = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        self.split(self.condition(s.subject), *ways, *([] if all_taken else [lambda: None]))

    def _import(self, s: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if PATCHING_MODULE in self.code(s):
            self.facts.hcom.append((s.lineno, self.code(s), self.doubt))
        for alias in s.names:
            top = alias.name.partition(".")[0]
            if alias.name == "*":
                self.cloud(scope, f"line {s.lineno} may import another of this name")
            elif isinstance(s, ast.Import):
                self._bind(scope, alias.asname or top, Dotted(name=alias.name if alias.asname else top))
            else:
                self._bind(scope, alias.asname or alias.name, module(f"{s.module or ''}.{alias.name}"))

    # Assignments.

    def _bind(self, scope: Scope, name: str, value: Value) -> None:
        self.put(scope.elsewhere.get(name, scope).names, name, named(value, name))

    def assign(self, target: ast.expr, value: Value, scope: Scope, s: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            starred = any(isinstance(item, ast.Starred) for item in target.elts)
            parts = [] if starred else elements(value) or []
            rest = Unknown(why="it is one of several values", either=held_in([value]))
            for index, item in enumerate(target.elts):
                inner = item.value if isinstance(item, ast.Starred) else item
                self.assign(inner, parts[index] if index < len(parts) else rest, scope, s)
        elif isinstance(target, ast.Attribute):
            self.each(self.value(target.value, scope), lambda base: self.store(base, target.attr, value, s))
        elif isinstance(target, ast.Subscript):
            key = self.value(target.slice, scope)
            self.each(self.value(target.value, scope), lambda base: self._put_item(base, key, value, s))

    def _put_item(self, base: Value, key: Value, value: Value, s: ast.AST) -> None:
        is_new = isinstance(key, Const) and isinstance(base, Items) and str(key.value) not in base.items
        if isinstance(base, Items) and not (base.listed and is_new):
            self.filled(base, [(key if isinstance(key, Const) else Unknown(why=NOT_CONSTANT, either=(value,)), value)])
        elif isinstance(base, Items):
            self.escape(base, "it is set by an index")
        elif isinstance(base, Dotted) and base.name == "os.environ" and of_the_vendor(key):
            self.unread(s, ENVIRONMENT)

    def _delete(self, target: ast.expr, scope: Scope, s: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, MISSING)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            key = self.value(target.slice, scope) if isinstance(target, ast.Subscript) else Unknown(why=NOT_CONSTANT)

            def drop(base: Value) -> None:
                if isinstance(base, Items) and isinstance(key, Const) and not base.listed:
                    self.put(base.items, str(key.value), MISSING)
                else:
                    self.escape(base, f"line {target.lineno} takes something from it")

            self.each(self.value(target.value, scope), drop)

    # Functions and classes of the script.

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
        self.block(s.body, Scope(names=made.attributes, parent=scope, home=made))
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
        if not any(one is made for one in cls.instances):
            cls.instances.append(made)
        for name in ("__init__", "__post_init__"):
            method = cls.found(name)
            if isinstance(method, Def):
                self.call(evolve(method, owner=made), e, *((args, keywords) if name == "__init__" else ((), {})))
            elif name == "__init__" and cls.is_foreign:
                for value in (made, *args, *keywords.values()):
                    self.escape(value, f"line {getattr(e, 'lineno', 0)}: a class that is not in this script decides")
            elif name == "__init__":
                any_field = [(one, keywords[REST]) for one in cls.fields if REST in keywords]
                named_ones = [(one, value) for one, value in keywords.items() if one != REST]
                for field_name, value in (*any_field, *zip(cls.fields, args, strict=False), *named_ones):
                    self.put(made.attributes, field_name, value)
        special = [cls.found(name) for name in ("__new__", "__getattr__", "__getattribute__", "__setattr__")]
        plainly = all(method is MISSING for method in special)
        return made if plainly else Unknown(why=f"{cls.name} has attributes of its own making", either=(made,))

    def call(self, made: Def, e: ast.AST, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """The script's own function, read with these arguments; what it returns."""
        if len(self.open) >= DEEPEST or made.node in self.open:
            self.again.add(made.node)
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
        scope = Scope(names=self.cells(bound=True), parent=made.scope)
        scope.names.update(self._bound(made, args, keywords))
        self.block(made.node.body, scope)  # what it raises ends the reading
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
        for name, value in pairs:
            bound[name] = evolve(value, name=name, argument=True) if isinstance(value, Unknown) else value
        if spec.vararg is not None:
            bound[spec.vararg.arg] = Unknown(
                why=NOT_CONSTANT, name=spec.vararg.arg, either=held_in(given[len(names) :])
            )
        if spec.kwarg is not None:
            more = [(None if k == REST else Const(value=k), v) for k, v in keywords.items() if k not in every]
            bound[spec.kwarg.arg] = self.filled(self.made(made.node, Items), more)
        if owner is not None and made.home is not None:
            above = Object(name="super", bases=made.home.bases, foreign=made.home.foreign)
            view = Object(name="super", attributes=owner.attributes, cls=above, real=owner.real or owner)
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

        def alone(act: Any) -> None:
            doubts, self.doubts = self.doubts, []
            act()
            self.doubts = doubts

        def perhaps(act: Any) -> None:
            self.split(NEVER, lambda: alone(act), lambda: None)

        for cls in self.classes:  # grows while nested ones are found
            if not cls.instances:
                perhaps(partial(self._instance, cls, cls.node, [], ANY))

        def body() -> None:
            for last in (False, True):
                for made in self.defs:
                    name = made.node.name if isinstance(made, Def) else ""
                    if made.node not in self.seen and (last or name not in used):
                        self.seen.add(made.node)
                        perhaps(partial(self._alone, made))

        self.repeat(NEVER, body)

    def _alone(self, made: Def | Partial) -> None:
        if isinstance(made, Partial):
            self.invoke(made, made.node, [], {})
            return
        home = made.home
        if home is not None and "staticmethod" not in decorators(made.node):
            if len(home.instances) != 1:
                owner = self.made(made.node, Object, name=home.name, cls=home)
                for name in {name for one in home.instances for name in one.attributes}:
                    self.put(owner.attributes, name, merge([one.found(name) for one in home.instances], SEVERAL))
            else:
                owner = home.instances[0]
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


def _loaded(target: ast.expr) -> ast.expr:
    return ast.Name(id=target.id, ctx=ast.Load()) if isinstance(target, ast.Name) else target


def _yields(node: ast.AST) -> str:
    """Why the body of a generator may not be run; empty for any other function."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return "it is in a generator"
        nested = isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
        if not nested and (why := _yields(part)):
            return why
    return ""


def _is_use(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
