"""A script that builds a CompilerConfig, read as a syntax tree: what it would set, and which lines say something else.

Nothing is run and nothing is imported. Assignments are followed through names, aliases, attributes of `self`, and
calls of the script's own functions. What depends on a condition, a loop, an argument or a computation is not guessed:
it is listed. Everything that has nothing to do with TorchAir is passed over in silence.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeGuard

from attrs import define, field

from npucompose.recipe.arithmetic import computed
from npucompose.recipe.beside_calls import PATCHING_MODULE
from npucompose.recipe.environment import from_environment
from npucompose.recipe.expressions import DICT_METHODS, composed, why_unknown
from npucompose.recipe.genuine import HOOKS, Unread, attributes, group_of, set_option
from npucompose.recipe.held import (
    MOST_ITEMS,
    constructed,
    filter_of,
    is_property,
    is_static,
    items_of,
    module,
    named,
    rounds_of,
    size,
)
from npucompose.recipe.node_filters import is_node_filter
from npucompose.recipe.values import (
    Argument,
    At,
    Backend,
    Compile,
    Config,
    Const,
    Def,
    Dotted,
    Doubt,
    Filter,
    GearsCall,
    Items,
    Logger,
    MarkCall,
    Object,
    Rounds,
    Unknown,
    Value,
    plain,
    unknown_in,
    where_of,
)
from npucompose.schema.versions import REFERENCE

CONDITION, LOOP = "it depends on a condition", "it is in a loop"
SETTINGS = ("torchair", "npugraph_ex", "torch_npu", "torch.npu", "torch._dynamo")
"""Modules whose settings decide what is compiled: an assignment to one is never passed over."""
VENDOR_ENVIRONMENT = (
    "ASCEND", "ACL", "ATB", "CANN", "GE_", "HCCL", "NPU", "PYTORCH_NPU", "TASK_QUEUE", "TNG_", "TORCHAIR",
    "TORCH_COMPILE",
)  # fmt: skip
"""How the names of variables begin that torch_npu, TorchAir and CANN read."""
TOO_MANY = "it holds too many values"
DEEPEST = 20
MOST_STEPS = 300_000
"""Statements and expressions, each counted as often as a call leads to it, beside those of the script itself."""


class TooLong(Exception):
    """The functions of a script call one another so often that reading it would not end."""


@define(kw_only=True)
class Facts:
    """Everything that a script says about compiling, in the order in which it says it."""

    configs: list[Config] = field(factory=list)
    backends: list[Backend] = field(factory=list)
    compiles: list[Compile] = field(factory=list)
    marks: list[MarkCall] = field(factory=list)
    gears: list[GearsCall] = field(factory=list)
    levels: dict[str, str] = field(factory=dict)
    artifacts: list[str] = field(factory=list)
    hcom: list[tuple[int, str, str]] = field(factory=list)
    """(line, code, why it may not be called) of each patch_for_hcom."""
    in_models: dict[str, dict[str, list[int]]] = field(factory=dict)
    """{what is decided: {function: lines}} of the scopes and events in a model's own code."""
    unread: list[Unread] = field(factory=list)


def read(tree: ast.Module, torch_npu: str = REFERENCE) -> Facts:
    """The facts of a whole script for that torch_npu; functions that nobody calls are read too, after all else."""
    nodes = list(ast.walk(tree))
    stores = Counter(n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    reader = _Reader(torch_npu, MOST_STEPS + 3 * len(nodes), stores)
    scope: dict[str, Value] = {}
    reader.block(tree.body, scope)
    reader.uncalled({n.id if isinstance(n, ast.Name) else n.attr for n in nodes if _is_use(n)})
    reader.facts.unread = sorted(dict.fromkeys(reader.facts.unread), key=lambda u: u.line)
    return reader.facts


class _Reader:
    def __init__(self, torch_npu: str, steps: int, stores: Mapping[str, int] | None = None) -> None:
        self.torch_npu = torch_npu
        self.stores = stores if stores is not None else Counter[str]()
        """How often the script sets an attribute of each name."""
        self.facts = Facts()
        self.steps_left = steps
        self.depth = 0
        self.rounds_deep = 0
        """How many loops are read round for round at this place."""
        self.set_by: dict[tuple[int, str], ast.AST] = {}
        """{(configuration, path): the statement in a round that set it last}."""
        self.branch: tuple[Doubt, ...] = ()
        """The branches and loops that this place lies in; empty where an assignment certainly happens."""
        self.defs: list[Def] = []
        self.seen: set[ast.AST] = set()
        self.returned: Value | None = None

    @property
    def doubt(self) -> str:
        """Why an assignment at this place may not happen; empty where it certainly does."""
        return self.branch[-1].why if self.branch else ""

    def doubt_of(self, made: Config | Items) -> str:
        """Why an option of a configuration, or a key, may not be set at this place although the object is made."""
        shared = sum(1 for one, other in zip(self.branch, made.branch, strict=False) if one is other)
        return self.branch[-1].why if len(self.branch) > shared else ""

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise TooLong

    def code(self, node: ast.AST) -> str:
        """The text of a part of the script. It takes the longer the longer it is."""
        text = ast.unparse(node)
        self.step(1 + len(text) // 20)
        return text

    # Statements.

    def block(self, body: Sequence[ast.stmt], scope: dict[str, Value]) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, s: ast.stmt, scope: dict[str, Value]) -> None:
        self.step()
        if isinstance(s, (ast.Import, ast.ImportFrom)):
            self._import(s, scope)
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in s.decorator_list:
                self._decorator(decorator, scope)
            scope[s.name] = self._def(Def(node=s, scope=scope))
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
            with self._doubting(LOOP):
                self.block([*s.body, *s.orelse], scope)
        elif isinstance(s, (ast.With, ast.AsyncWith)):
            for item in s.items:
                self.value(item.context_expr, scope)
            self.block(s.body, scope)
        elif isinstance(s, ast.Try):
            self.block(s.body, scope)
            with self._doubting("it is in an except clause"):
                self.block([statement for handler in s.handlers for statement in handler.body], scope)
            self.block([*s.orelse, *s.finalbody], scope)
        elif isinstance(s, ast.Match):
            for case in s.cases:
                with self._doubting(CONDITION):
                    self.block(case.body, scope)

    def _for(self, s: ast.For | ast.AsyncFor, scope: dict[str, Value]) -> None:
        """Over a constant list or the items of a dict of the script: round for round; else its body may not be run."""
        over = rounds_of(self.value(s.iter, scope))
        if isinstance(over, Rounds) and not any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(s)):
            for values in over.rounds:
                targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
                for target, value in zip(targets, values, strict=False):
                    self.assign(target, value, scope, s)
                with self._one_round():
                    self.block(s.body, scope)
            self.block(s.orelse, scope)
            return
        if isinstance(s.target, ast.Name):
            scope[s.target.id] = over if isinstance(over, Argument) else Unknown(why=LOOP)
        with self._doubting(LOOP):
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
            with self._doubting(CONDITION):
                self.block(branch, scope)

    @contextmanager
    def _one_round(self) -> Iterator[None]:
        self.rounds_deep += 1
        try:
            yield
        finally:
            self.rounds_deep -= 1

    def _return(self, value: Value) -> None:
        """The first counts; a constant that may not be returned is not known, an object that is returned else is."""
        if self.returned is None or (isinstance(self.returned, Unknown) and not isinstance(value, Const)):
            self.returned = Unknown(why=self.doubt) if self.doubt and isinstance(value, Const) else value

    @contextmanager
    def _doubting(self, why: str) -> Iterator[None]:
        before, self.branch = self.branch, (*self.branch, Doubt(why=why))
        try:
            yield
        finally:
            self.branch = before

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
                for decorator in statement.decorator_list:
                    self._decorator(decorator, scope)
                made.attributes[statement.name] = self._def(Def(node=statement, scope=scope, owner=made))
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        made.attributes[target.id] = self.value(statement.value, {**scope, **made.attributes})
        return made

    def _def(self, made: Def) -> Def:
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
            parts = value.value if isinstance(value, Const) and isinstance(value.value, list) else None
            for index, item in enumerate(target.elts):
                known = parts is not None and index < len(parts)
                part: Value = (
                    Const(value=parts[index]) if parts and known else Unknown(why="it is one of several values")
                )
                self.assign(item, part, scope, s)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value, scope)
            if isinstance(base, (Config, At)):
                self.option(base, target.attr, value, s)
            elif isinstance(base, Object):
                base.attributes[target.attr] = named(value, target.attr)
            elif isinstance(base, Dotted) and base.name.startswith(SETTINGS):
                self.unread(s, "no YAML is known for it")
            elif isinstance(base, (Argument, Unknown)) and _looks_like_an_option(self.code(target)):
                self.unread(s, "it is not known which configuration this is")
        elif isinstance(target, ast.Subscript):
            base, key = self.value(target.value, scope), self.value(target.slice, scope)
            if isinstance(base, Items):
                base.items.update(items_of([(key, self.certain(value, base))]))
            elif isinstance(base, Dotted) and base.name == "os.environ" and _of_the_vendor(key):
                self.unread(s, "YAML sets no environment: set it where npucompose runs, or hydra.job.env_set")

    def option(self, base: Config | At, name: str, value: Value, s: ast.AST) -> None:
        config, path = where_of(base, name)
        if path in HOOKS:
            config.hooks[HOOKS[path]] = s
            return
        if group_of(config.package, path, self.torch_npu):
            self.unread(s, "a whole sub-configuration is replaced")
            return
        why = self.doubt_of(config) or (value.why if isinstance(value, Unknown) else "")
        kept = plain(value)
        leaf = attributes(config.package, self.torch_npu).get(path)
        takes_function = leaf is not None and leaf.kind == "names" and kept is not None
        if not why and takes_function != isinstance(value, Filter):
            why = "it takes a function of nodes" if takes_function else "it is a function"
        if not why and kept is None and not isinstance(value, Const):
            why = unknown_in(value) or ""
        self.step(count := size(kept))
        why = why or (TOO_MANY if count > MOST_ITEMS else "")
        why = why or self._again(config, path, s) or ""
        why = why or set_option(config.package, config.values, path, kept, self.torch_npu) or ""
        if why:
            self.unread(s, why)

    def _again(self, config: Config, path: str, s: ast.AST) -> str | None:
        """One statement that sets one option in several rounds tries values: which one is meant is not known."""
        if not self.rounds_deep:
            return None
        if self.set_by.setdefault((id(config), path), s) is not s:
            self.set_by[id(config), path] = s
        elif path in config.rounds_set:
            config.values.pop(path, None)
            return LOOP
        config.rounds_set.add(path)
        return None

    def certain(self, value: Value, made: Items) -> Value:
        """What a key of a dict may hold after an assignment at this place."""
        why = self.doubt_of(made)
        return Unknown(why=why) if why else value

    def unread(self, s: ast.AST, why: str) -> None:
        code = " ".join(self.code(s).split())
        short = code if len(code) <= 100 else code[:97] + "..."
        self.facts.unread.append(Unread(line=getattr(s, "lineno", 0), code=short, why=why))

    # Expressions.

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
        if isinstance(e, ast.Lambda):
            return Unknown(why="it is a function")
        return composed(self, e, scope) or computed(e)

    def decided(self, test: ast.expr, scope: Mapping[str, Value]) -> Value:
        """A condition; not known in a loop or by an attribute that is set more than once, which may have changed."""
        value = self.value(test, scope)
        changing = any(isinstance(n, ast.Attribute) and self.stores[n.attr] > 1 for n in ast.walk(test))
        looped = any(doubt.why == LOOP for doubt in self.branch) and not isinstance(test, ast.Constant)
        return Unknown(why=CONDITION) if isinstance(value, Const) and (changing or looped) else value

    def conditional(self) -> AbstractContextManager[None]:
        return self._doubting(CONDITION)

    def comprehension(self, e: Any, scope: Mapping[str, Value]) -> Value:
        """What it calls is in a loop."""
        inner = dict(scope)
        for generator in e.generators:
            self.value(generator.iter, inner)
            names = [n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)]
            inner.update({name: Unknown(why=LOOP) for name in names})
        with self._doubting(LOOP):
            for part in (e.key, e.value) if isinstance(e, ast.DictComp) else (e.elt,):
                self.value(part, inner)
        return Unknown(why=LOOP)

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
            config, path = where_of(base, e.attr)
            return At(config=config, path=path)
        if isinstance(base, Object):
            found = base.attributes.get(e.attr)
            if isinstance(found, Def) and is_property(found.node):
                return self.call(found, [], {})
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
            return Argument(name=key.value)
        return Unknown(why=f"'{self.code(e)}' is known only when the script runs")

    # Calls.

    def _call(self, e: ast.Call, scope: Mapping[str, Value]) -> Value:
        from npucompose.recipe.calls import called

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
        if isinstance(function, Def) and is_node_filter(function.node):
            return filter_of(args)
        if isinstance(function, Def):
            return self.call(function, args, keywords)
        if isinstance(function, Object):  # a class of the script: its one instance is the class itself
            initial = function.attributes.get("__init__")
            if isinstance(initial, Def):
                self.call(initial, args, keywords)
            else:
                constructed(function, keywords)
            return function
        name = function.name if isinstance(function, (Dotted, Unknown)) else ""
        return called(self, name, e, args, keywords)

    def _level(self, logger: Logger, args: Sequence[Value], e: ast.Call) -> None:
        level = args[0] if args else Unknown(why="no level is given")
        name = level.name.removeprefix("logging.") if isinstance(level, Dotted) else str(plain(level))
        if name in ("DEBUG", "INFO", "WARNING", "ERROR") and not self.doubt:
            self.facts.levels[logger.name] = name
        else:
            self.unread(e, self.doubt or "the level is none of DEBUG, INFO, WARNING, ERROR")

    def _decorator(self, e: ast.expr, scope: dict[str, Value]) -> None:
        from npucompose.recipe.calls import called

        if isinstance(self.value(e, scope), Dotted) and self.code(e) == "torch.compile":
            called(self, "torch.compile", ast.Call(func=e, args=[], keywords=[], lineno=e.lineno), [], {})

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
        try:
            self.block(made.node.body, scope)
            return self.returned if self.returned is not None else Const(value=None)
        finally:
            self.depth, made.open, self.returned = self.depth - 1, False, returned

    def _bound(
        self, made: Def, args: Sequence[Value], keywords: Mapping[str, Value], unknown: bool
    ) -> dict[str, Value]:
        spec = made.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        bound: dict[str, Value] = {name: Argument(name=name) for name in (*names, *(a.arg for a in spec.kwonlyargs))}
        if not unknown:
            defaults = [*zip(reversed(names), reversed(spec.defaults), strict=False)]
            defaults += [(a.arg, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
            bound.update({name: self.value(default, made.scope) for name, default in defaults})
        given = [made.owner, *args] if made.owner is not None and not is_static(made.node) else list(args)
        bound.update({name: value for name, value in zip(names, given, strict=False) if not isinstance(value, Unknown)})
        return bound | {k: v for k, v in keywords.items() if k in bound and not isinstance(v, Unknown)}


def _of_the_vendor(key: Value) -> bool:
    return isinstance(key, Const) and str(key.value).startswith(VENDOR_ENVIRONMENT)


def _is_use(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


def _looks_like_an_option(text: str) -> bool:
    """`cfg.experimental_config.frozen_parameter` of an unknown `cfg`; not `args.mode`."""
    return any(f".{group}." in text for group in ("experimental_config", "debug", "ge_config", "dump_config", "export"))
