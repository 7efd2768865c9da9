"""A script that builds a CompilerConfig, read as a syntax tree: what it would set, and which lines say something else.

Nothing is run and nothing is imported. Assignments are followed through names, aliases, attributes of `self`, and
calls of the script's own functions. What depends on a condition, a loop, an argument or a computation is not guessed:
it is listed. Everything that has nothing to do with TorchAir is passed over in silence.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from attrs import define, field

from npucompose.recipe.calls import PATCHING_MODULE, called
from npucompose.recipe.expressions import Expressions
from npucompose.recipe.values import (
    CONDITION,
    LOOP,
    At,
    Config,
    Const,
    Def,
    Dotted,
    Facts,
    Filter,
    Items,
    Object,
    Parameter,
    Rounds,
    Unknown,
    Value,
    items_of,
    module,
    named,
    plain,
    rounds_of,
)
from npucompose.recipe.vendor_options import is_node_filter
from npucompose.vendor.versions import REFERENCE

SETTINGS = ("torchair", "npugraph_ex", "torch_npu", "torch.npu", "torch._dynamo")
"""Modules whose settings decide what is compiled: an assignment to one is never passed over."""
VENDOR_ENVIRONMENT = (
    "ASCEND", "ACL", "ATB", "CANN", "GE_", "HCCL", "NPU", "PYTORCH_NPU", "TASK_QUEUE", "TNG_", "TORCHAIR",
    "TORCH_COMPILE",
)  # fmt: skip
"""How the names of variables begin that torch_npu, TorchAir and CANN read."""
DEEPEST = 20
MOST_STEPS = 300_000
"""Statements and expressions, each counted as often as a call leads to it, beside those of the script itself."""


def read(tree: ast.Module, torch_npu: str = REFERENCE) -> Facts:
    """The facts of a whole script for that torch_npu; functions that nobody calls are read too, after all else."""
    nodes = list(ast.walk(tree))
    stores = Counter(n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    reader = Reader(torch_npu, MOST_STEPS + 3 * len(nodes), stores=stores)
    scope: dict[str, Value] = {}
    reader.block(tree.body, scope)
    reader.uncalled({n.id if isinstance(n, ast.Name) else n.attr for n in nodes if _is_use(n)})
    reader.facts.unread = sorted(dict.fromkeys(reader.facts.unread), key=lambda u: u.line)
    return reader.facts


@define(eq=False)
class Reader(Expressions):
    """Statements, assignments and functions of a script, one after the other."""

    depth: int = 0
    defs: list[Def] = field(factory=list)
    seen: set[ast.AST] = field(factory=set)
    returned: Value | None = None

    def block(self, body: Sequence[ast.stmt], scope: dict[str, Value]) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, s: ast.stmt, scope: dict[str, Value]) -> None:
        self.step()
        if isinstance(s, (ast.Import, ast.ImportFrom)):
            self._import(s, scope)
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope[s.name] = self._function(s, scope)
        elif isinstance(s, ast.ClassDef):
            scope[s.name] = self._class(s, scope)
        elif isinstance(s, ast.Assign):
            value = self.value(s.value, scope)
            for target in s.targets:
                self.assign(target, value, scope, s)
        elif isinstance(s, ast.AnnAssign) and s.value is not None:
            self.assign(s.target, self.value(s.value, scope), scope, s)
        elif isinstance(s, ast.AugAssign):
            self.assign(s.target, Unknown(why="it is computed from what it was"), scope, s)
        elif isinstance(s, ast.Expr):
            self.value(s.value, scope)
        elif isinstance(s, ast.Return):
            self._return(self.value(s.value, scope) if s.value else Const(value=None))
        else:
            self._compound(s, scope)

    def _compound(self, s: ast.stmt, scope: dict[str, Value]) -> None:
        if isinstance(s, ast.If):
            self._if(s, scope)
        elif isinstance(s, (ast.For, ast.AsyncFor)):
            self._for(s, scope)
        elif isinstance(s, ast.While):
            with self.doubting(LOOP):
                self.block([*s.body, *s.orelse], scope)
        elif isinstance(s, (ast.With, ast.AsyncWith)):
            for item in s.items:
                self.value(item.context_expr, scope)
            self.block(s.body, scope)
        elif isinstance(s, ast.Try):
            self.block(s.body, scope)
            with self.doubting("it is in an except clause"):
                self.block([statement for handler in s.handlers for statement in handler.body], scope)
            self.block([*s.orelse, *s.finalbody], scope)
        elif isinstance(s, ast.Match):
            for case in s.cases:
                with self.doubting(CONDITION):
                    self.block(case.body, scope)

    def _for(self, s: ast.For | ast.AsyncFor, scope: dict[str, Value]) -> None:
        """Over a constant list or the items of a dict of the script: round for round; else its body may not be run."""
        over = rounds_of(self.value(s.iter, scope))
        if isinstance(over, Rounds) and not any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(s)):
            for values in over.rounds:
                targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
                for target, value in zip(targets, values, strict=False):
                    self.assign(target, value, scope, s)
                self.rounds_deep += 1
                self.block(s.body, scope)
                self.rounds_deep -= 1
            self.block(s.orelse, scope)
            return
        if isinstance(s.target, ast.Name):
            scope[s.target.id] = over if isinstance(over, Parameter) else Unknown(why=LOOP)
        with self.doubting(LOOP):
            self.block([*s.body, *s.orelse], scope)

    def _if(self, s: ast.If, scope: dict[str, Value]) -> None:
        test_code = self.code(s.test)
        if test_code == "__name__ == '__main__'":
            self.block(s.body, scope)
            return
        test = self.decided(s.test, scope)
        if isinstance(test, Const):
            self.block(s.body if test.value else s.orelse, scope)
            return
        if isinstance(s.test, ast.Call) and test_code.startswith("isinstance("):  # of a tensor, or it marks nothing
            self.block([*s.body, *s.orelse], scope)
            return
        for branch in (s.body, s.orelse):
            with self.doubting(CONDITION):
                self.block(branch, scope)

    def _return(self, value: Value) -> None:
        """The first counts; a constant that may not be returned is not known, an object that is returned else is."""
        if self.returned is None or (isinstance(self.returned, Unknown) and not isinstance(value, Const)):
            self.returned = Unknown(why=self.doubt) if self.doubt and isinstance(value, Const) else value

    def _import(self, s: ast.Import | ast.ImportFrom, scope: dict[str, Value]) -> None:
        if PATCHING_MODULE in self.code(s):
            self.facts.hcom.append((s.lineno, self.code(s), self.doubt))
        for alias in s.names:
            if isinstance(s, ast.Import):
                top = alias.name.partition(".")[0]
                scope[alias.asname or top] = Dotted(name=alias.name if alias.asname else top)
            else:
                scope[alias.asname or alias.name] = module(f"{s.module or ''}.{alias.name}")

    def _class(self, s: ast.ClassDef, scope: dict[str, Value]) -> Value:
        made = Object(name=s.name)
        for statement in s.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                made.attributes[statement.name] = self._function(statement, scope, made)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        made.attributes[target.id] = self.value(statement.value, {**scope, **made.attributes})
        return made

    def _function(
        self, s: ast.FunctionDef | ast.AsyncFunctionDef, scope: dict[str, Value], owner: Object | None = None
    ) -> Def:
        for decorator in s.decorator_list:
            self._decorator(decorator, scope)
        made = Def(node=s, scope=scope, owner=owner)
        self.defs.append(made)
        return made

    def uncalled(self, used: set[str]) -> None:
        """Bodies that no call reached (a library of functions, a class that others use), `used` ones last."""
        for last in (False, True):
            for made in self.defs:  # grows while nested functions are found
                if made.node not in self.seen and (last or made.node.name not in used):
                    self.call(made, [], {}, unknown=True)

    # Assignments.

    def assign(self, target: ast.expr, value: Value, scope: dict[str, Value], s: ast.stmt) -> None:
        if isinstance(target, ast.Name):
            doubtful = self.doubt and isinstance(value, Const)
            scope[target.id] = Unknown(why=self.doubt) if doubtful else named(value, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.value if isinstance(value, Const) and isinstance(value.value, list) else []
            for index, item in enumerate(target.elts):
                several = Unknown(why="it is one of several values")
                part: Value = Const(value=parts[index]) if index < len(parts) else several
                self.assign(item, part, scope, s)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value, scope)
            if isinstance(base, (Config, At)):
                self.option(base, target.attr, value, s)
            elif isinstance(base, Object):
                base.attributes[target.attr] = named(value, target.attr)
            elif isinstance(base, Dotted) and base.name.startswith(SETTINGS):
                self.unread(s, "no YAML is known for it")
            elif isinstance(base, (Parameter, Unknown)) and _looks_like_an_option(self.code(target)):
                self.unread(s, "it is not known which configuration this is")
        elif isinstance(target, ast.Subscript):
            base, key = self.value(target.value, scope), self.value(target.slice, scope)
            if isinstance(base, Items):
                base.items.update(items_of([(key, self.certain(value, base))]))
            elif isinstance(base, Dotted) and base.name == "os.environ" and _of_the_vendor(key):
                self.unread(s, "YAML sets no environment: set it where npucompose runs, or hydra.job.env_set")

    # Functions and classes of the script.

    def own(self, made: Def | Object, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        if isinstance(made, Object):  # a class of the script: its one instance is the class itself
            initial = made.attributes.get("__init__")
            if isinstance(initial, Def):
                self.call(initial, args, keywords)
            else:
                constructed(made, keywords)
            return made
        return filter_of(args) if is_node_filter(made.node) else self.call(made, args, keywords)

    def call(self, made: Def, args: Sequence[Value], keywords: Mapping[str, Value], *, unknown: bool = False) -> Value:
        """The script's own function, read with these arguments; what it returns."""
        if self.depth >= DEEPEST or made.open:
            return Unknown(why="the script's functions call each other in a circle")
        self.seen.add(made.node)
        self.step(len(made.scope) // 10)
        scope = dict(made.scope)
        scope.update(self._bound(made, args, keywords, unknown))
        returned, self.returned = self.returned, None
        self.depth, made.open = self.depth + 1, True
        self.block(made.node.body, scope)  # what it raises ends the reading
        found = self.returned if self.returned is not None else Const(value=None)
        self.depth, made.open, self.returned = self.depth - 1, False, returned
        return found

    def _bound(
        self, made: Def, args: Sequence[Value], keywords: Mapping[str, Value], unknown: bool
    ) -> dict[str, Value]:
        spec = made.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Value] = {name: Parameter(name=name) for name in (*names, *(a.arg for a in spec.kwonlyargs))}
        if not unknown:
            defaults = [*zip(reversed(names), reversed(spec.defaults), strict=False)]
            defaults += [(a.arg, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
            bound.update({name: self.value(default, made.scope) for name, default in defaults})
        given = [made.owner, *args] if made.owner is not None and not is_static(made.node) else list(args)
        bound.update({name: value for name, value in zip(names, given, strict=False) if not isinstance(value, Unknown)})
        return bound | {k: v for k, v in keywords.items() if k in bound and not isinstance(v, Unknown)}

    def _decorator(self, e: ast.expr, scope: dict[str, Value]) -> None:
        if isinstance(self.value(e, scope), Dotted) and self.code(e) == "torch.compile":
            called(self, "torch.compile", ast.Call(func=e, args=[], keywords=[], lineno=e.lineno), [], {})


def constructed(made: Object, keywords: Mapping[str, Value]) -> None:
    """The fields of a class without __init__, as a dataclass takes them."""
    for name, value in keywords.items():
        before = made.attributes.get(name)
        other = name in made.given and (not isinstance(before, Const) or plain(before) != plain(value))
        made.attributes[name] = Unknown(why=f"instances of {made.name} have several values of it") if other else value
        made.given.add(name)


def is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def filter_of(args: Sequence[Value]) -> Value:
    patterns = plain(args[0]) if args else None
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return Filter(patterns=tuple(patterns))
    return Unknown(why="the patterns of the filter are not constants")


def _of_the_vendor(key: Value) -> bool:
    return isinstance(key, Const) and str(key.value).startswith(VENDOR_ENVIRONMENT)


def _is_use(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


def _looks_like_an_option(text: str) -> bool:
    """`cfg.experimental_config.frozen_parameter` of an unknown `cfg`; not `args.mode`."""
    return any(f".{group}." in text for group in ("experimental_config", "debug", "ge_config", "dump_config", "export"))
