"""A script that builds a CompilerConfig, read as a syntax tree: what it would set, and which lines say something else.

Nothing is run and nothing is imported. Assignments are followed through names, aliases, attributes of `self`, and
calls of the script's own functions. What is not the same on every path (`paths`) is not guessed: it is listed.
Everything that has nothing to do with TorchAir is passed over in silence.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from attrs import define, evolve

from npucompose.recipe.calls import PATCHING_MODULE
from npucompose.recipe.functions import Functions
from npucompose.recipe.marks import ENVIRONMENT, NONE, OVER_ARGUMENT, of_the_vendor
from npucompose.recipe.python_calls import held_in
from npucompose.recipe.values import (
    CONDITION,
    LOOP,
    MISSING,
    NOT_CONSTANT,
    At,
    Cells,
    Const,
    Dotted,
    Items,
    Scope,
    Unknown,
    Value,
    elements,
    module,
    named,
    truth,
)
from npucompose.vendor.versions import REFERENCE

MOST_STEPS = 300_000
"""Statements and expressions, each counted as often as a call leads to it, beside those of the script itself."""


def reading(tree: ast.Module, torch_npu: str = REFERENCE, assumed: Mapping[str, Any] | None = None) -> Reader:
    """A reader that has read a whole script for that torch_npu: its facts, its conditions, what was assumed.

    Functions that no line calls are read too, after all else.
    """
    nodes = list(ast.walk(tree))
    reader = Reader(torch_npu, MOST_STEPS + 10 * len(nodes), assumed=assumed or {})
    reader.block(tree.body, Scope(names=Cells(bound=True, values={"__name__": Const(value="__main__")})))
    reader.dead = False
    reader.doubts.clear()
    reader.uncalled(Counter(n.id if isinstance(n, ast.Name) else n.attr for n in nodes if _is_use(n)))
    reader.settle()
    reader.facts.unread = sorted(dict.fromkeys(reader.facts.unread), key=lambda u: u.line)
    return reader


@define(eq=False)
class Reader(Functions):
    """Statements, assignments and functions of a script, one after the other."""

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            if self.dead:
                return
            self.step()
            self.statement(statement, scope)

    def statement(self, s: ast.stmt, scope: Scope) -> None:
        STATEMENTS.get(type(s), Reader._other)(self, s, scope)

    def _bound_to_its_name(self, s: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope) -> None:
        self._bind(scope, s.name, self._class(s, scope) if isinstance(s, ast.ClassDef) else self.function(s, scope))

    def _assignment(self, s: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        if s.value is not None:
            value = self.value(s.value, scope)
            for target in s.targets if isinstance(s, ast.Assign) else [s.target]:
                self.assign(target, value, scope, s)

    def _augmented(self, s: ast.AugAssign, scope: Scope) -> None:
        before, why = self.value(s.target, scope), "it is computed from what it was"
        if not isinstance(before, At):
            self.escape(before, why)
        held = held_in([before, self.value(s.value, scope)])
        self.assign(s.target, Unknown(why=why, either=held), scope, s)

    def _declared(self, s: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        at = scope.top() if isinstance(s, ast.Global) else scope.parent
        for name in s.names:
            while isinstance(s, ast.Nonlocal) and at is not None and name not in at.names:
                at = at.parent
            scope.elsewhere[name] = at or scope

    def _while(self, s: ast.While, scope: Scope) -> None:
        self.repeat(LOOP, lambda: (self.value(s.test, scope), self.block(s.body, scope)))
        self._otherwise(s, scope)

    def _return(self, s: ast.Return, scope: Scope) -> None:
        value = self.value(s.value, scope) if s.value else NONE
        for body, around in reversed(self.finals):
            self.block(body, around)
        mark, doubts = self.start
        self.exits.append((self.left(mark), value, self.doubt if len(self.doubts) > doubts else ""))
        self._leave(s, scope)

    def _other(self, s: ast.stmt, scope: Scope) -> None:
        """An expression, raise or assert; what is left out names nothing and calls nothing."""
        for part in ast.iter_child_nodes(s):
            if isinstance(part, ast.expr):
                self.value(part, scope)
        self.dead = self.dead or isinstance(s, ast.Raise)

    def _leave(self, s: ast.stmt, scope: Scope) -> None:
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
            if one.guard is not None:
                self.value(one.guard, scope)
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
        is_new = isinstance(key, Const) and isinstance(base, Items) and str(key.value) not in base.cells
        if isinstance(base, Items) and not (base.listed and is_new):
            self.filled(base, [(key if isinstance(key, Const) else Unknown(why=NOT_CONSTANT, either=(value,)), value)])
        elif isinstance(base, Items):
            self.escape(base, "it is set by an index")
        elif isinstance(base, Dotted) and base.name == "os.environ" and of_the_vendor(key):
            self.unread(s, ENVIRONMENT)

    def _deleted(self, s: ast.Delete, scope: Scope) -> None:
        for target in s.targets:
            self._delete(target, scope, s)

    def _delete(self, target: ast.expr, scope: Scope, s: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, MISSING)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            key = self.value(target.slice, scope) if isinstance(target, ast.Subscript) else Unknown(why=NOT_CONSTANT)

            def drop(base: Value) -> None:
                if isinstance(base, Items) and isinstance(key, Const) and not base.listed:
                    self.put(base.cells, str(key.value), MISSING)
                else:
                    self.escape(base, f"line {target.lineno} takes something from it")
                    self._put_item(base, key, MISSING, s)

            self.each(self.value(target.value, scope), drop)


def _is_use(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


STATEMENTS: Mapping[type[ast.stmt], Callable[[Reader, Any, Scope], None]] = {
    **dict.fromkeys((ast.Import, ast.ImportFrom), Reader._import),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), Reader._bound_to_its_name),
    **dict.fromkeys((ast.Assign, ast.AnnAssign), Reader._assignment),
    ast.AugAssign: Reader._augmented,
    ast.Delete: Reader._deleted,
    **dict.fromkeys((ast.Global, ast.Nonlocal), Reader._declared),
    ast.If: Reader._if,
    **dict.fromkeys((ast.For, ast.AsyncFor), Reader._for),
    ast.While: Reader._while,
    **dict.fromkeys((ast.With, ast.AsyncWith), Reader._with),
    **dict.fromkeys((ast.Try, getattr(ast, "TryStar", ast.Try)), Reader._try),  # of Python 3.11
    ast.Match: Reader._match,
    ast.Return: Reader._return,
    **dict.fromkeys((ast.Break, ast.Continue), Reader._leave),
}
"""All others are read for what their expressions call."""
