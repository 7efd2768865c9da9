"""What the names of a script stand for while it is read, and what is known at one place of it. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import define, field, frozen

from npucompose.recipe.vendor_options import HOOKS, MODE, Package, Unread, attributes, group_of, set_option

CONDITION, LOOP = "it depends on a condition", "it is in a loop"
TOO_MANY = "it holds too many values"
MOST_ITEMS = 10_000
"""Of a constant list or dict, what is in its lists counted too."""
LOGGERS = frozenset(f"{top}{at}.logger" for top in ("torchair", "npugraph_ex") for at in ("", ".core.utils"))
NOT_CONSTANT = "its value is not a constant"
"""Why a value is `Unknown` of which there is nothing else to say."""


@frozen(kw_only=True)
class Const:
    value: Any


@frozen(kw_only=True)
class Unknown:
    """A value that only running the script would show; `name` is how the script calls it."""

    why: str
    name: str = ""


@frozen(kw_only=True)
class Parameter:
    """An input of the model, or a parameter of a function, by name."""

    name: str


@frozen(kw_only=True)
class Dotted:
    """A module or something of it, under its full name: `torchair.CompilerConfig`."""

    name: str


@frozen(kw_only=True, eq=False)
class Branch:
    """A branch or a loop that may not be run: `Branch(why="it depends on a condition")`."""

    why: str


@define(kw_only=True, eq=False)
class Config:
    """One CompilerConfig; every alias of it is this same object."""

    package: Package
    line: int = 0
    values: dict[str, Any] = field(factory=dict[str, Any])
    """{YAML path: value}, `mode` included."""
    hooks: dict[str, ast.AST] = field(factory=dict[str, ast.AST])
    rounds_set: set[str] = field(factory=set[str])
    """Attribute paths that were set in a round of a loop."""
    branch: tuple[Branch, ...] = ()
    """The branches in which it was made: what is set in the same branches is as certain as it is."""

    @property
    def mode(self) -> str:
        return self.values.get("mode", self.values.get("npugraph_ex.mode", MODE[self.package]))

    @property
    def options(self) -> dict[str, Any]:
        return {path: value for path, value in self.values.items() if path not in ("mode", "npugraph_ex.mode")}


@frozen(kw_only=True)
class At:
    """A place inside a CompilerConfig: `config.debug.aclgraph`."""

    config: Config
    path: str


@frozen(kw_only=True)
class ScriptBackend:
    config: Config


@frozen(kw_only=True)
class PoolHandle:
    """A handle of a graph memory pool, under the name of the variable that holds it."""

    name: str = ""


@frozen(kw_only=True)
class Filter:
    """A function of nodes that an ejected script makes of patterns: `node_filter(("mm", "aten.add*"))`."""

    patterns: tuple[str, ...]


@frozen(kw_only=True)
class Logger:
    name: str


@define(kw_only=True, eq=False)
class Items:
    """A dict with text keys; what only running the script would put into it is under `**`."""

    items: dict[str, Value] = field(factory=dict)
    branch: tuple[Branch, ...] = ()
    """The branches in which it was made."""

    def rounds(self) -> Rounds | Unknown:
        """What a loop over its items sees, one after the other."""
        if "**" in self.items:
            return Unknown(why="some of its keys are not constants")
        return Rounds(rounds=tuple((Const(value=key), value) for key, value in self.items.items()))


@frozen(kw_only=True, eq=False)
class Rounds:
    """What a loop goes through: the values of its targets, round for round."""

    rounds: tuple[tuple[Value, ...], ...]


@define(kw_only=True, eq=False)
class Object:
    """A class of the script, taken for its one instance."""

    name: str
    attributes: dict[str, Value] = field(factory=dict)
    given: set[str] = field(factory=set[str])
    """Fields that a constructor was given by keyword: where a second one gives another value, none is known."""


@define(kw_only=True, eq=False)
class Def:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Mapping[str, Value]
    owner: Object | None = None
    open: bool = False
    """It is being read: a call of it from inside itself is not followed."""


Held: TypeAlias = "Items | Rounds | Object | Def"
Value: TypeAlias = (
    "Const | Unknown | Parameter | Dotted | Config | At | ScriptBackend | PoolHandle | Filter | Logger | Held"
)


@frozen(kw_only=True, eq=False)
class CompileCall:
    """One torch.compile or cache_compile; a keyword that was not given has that function's own default."""

    config: Config
    dynamic: bool | None
    fullgraph: bool
    node: ast.Call
    cached: bool = False
    """It is TorchAir's cache_compile."""

    @property
    def keywords(self) -> tuple[bool | None, bool, bool]:
        return self.dynamic, self.fullgraph, self.cached

    def __str__(self) -> str:
        """`line 12: torch.compile(mode=max-autotune, dynamic=True, fullgraph=False)`."""
        name = "cache_compile" if self.cached else "torch.compile" if self.node.lineno else "CompilerConfig"
        said = f"mode={self.config.mode}, dynamic={self.dynamic}, fullgraph={self.fullgraph}"
        return f"line {self.node.lineno or self.config.line}: {name}({said})"


def plain(value: Value) -> Any:
    """The value as YAML would hold it; None for what is no plain value (and for None itself)."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, PoolHandle):
        return value.name or "pool"
    if isinstance(value, Filter):
        return list(value.patterns)
    if isinstance(value, Items) and unknown_in(value) is None:
        return {key: plain(item) for key, item in value.items.items()}
    return None


def unknown_in(value: Value) -> str | None:
    """Why a value is no plain one, dicts looked through; None where it is."""
    if isinstance(value, Items):
        return next((why for item in value.items.values() if (why := unknown_in(item))), None)
    return None if isinstance(value, Const) else getattr(value, "why", NOT_CONSTANT)


def spread(value: Value) -> dict[str, Value]:
    """What `**value` puts into a dict."""
    return dict(value.items) if isinstance(value, Items) else {"**": Unknown(why="some of its keys are not constants")}


def with_keywords(keywords: Mapping[str, Value]) -> dict[str, Value]:
    """What the keywords of a call put into a dict, `**value` spread."""
    named = {name: value for name, value in keywords.items() if name != "**"}
    return named if "**" not in keywords else {**spread(keywords["**"]), **named}


def inside(base: Config | At, name: str) -> At:
    """`base.name`"""
    return (
        At(config=base, path=name) if isinstance(base, Config) else At(config=base.config, path=f"{base.path}.{name}")
    )


def items_of(pairs: Iterable[tuple[Value | None, Value]]) -> dict[str, Value]:
    """The entries of a dict, `**other` as (None, other)."""
    found: dict[str, Value] = {}
    for key, value in pairs:
        if isinstance(key, Const):
            found[str(key.value)] = named(value, str(key.value))
        else:
            found |= spread(value if key is None else key)
    return found


def rounds_of(over: Value) -> Value:
    """A constant list as rounds; a pair in it is shared out among two targets."""
    if isinstance(over, Items):
        return Rounds(rounds=tuple((Const(value=key),) for key in over.items)) if "**" not in over.items else over
    if not isinstance(over, Const) or not isinstance(over.value, list):
        return over
    items: list[Any] = over.value
    return Rounds(
        rounds=tuple(tuple(map(constant, item)) if isinstance(item, list) else (constant(item),) for item in items)
    )


def constant(value: Any) -> Value:
    if isinstance(value, dict):
        return Items(items={str(key): constant(item) for key, item in value.items()})
    return Const(value=value)


def named(value: Value, name: str) -> Value:
    """A pool takes the name of the first variable, attribute or key that holds it."""
    return PoolHandle(name=name) if isinstance(value, PoolHandle) and not value.name else value


def module(name: str) -> Value:
    """Something of a module; TorchAir's logger goes by the name that Python's logging knows it by."""
    top = name.partition(".")[0]
    return Logger(name=top) if name in LOGGERS else Dotted(name=name)


def from_environment(args: Sequence[Value]) -> Unknown:
    """`os.getenv("MODE", "reduce-overhead")`: which variable it is, and what holds where nobody sets it."""
    name = plain(args[0]) if args else None
    said = f"the environment variable {name}" if isinstance(name, str) else "an environment variable"
    default = args[1] if len(args) > 1 else None
    unset = f" (where it is unset: {plain(default)!r})" if isinstance(default, Const) else ""
    return Unknown(why=f"it is not constant: it comes from {said}{unset}", name=name if isinstance(name, str) else "")


def size(value: Any) -> int:
    """How many values it holds; counts no further than needed, for lists may hold the same one again and again."""
    inside: Sequence[Any] = (
        list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    total = 1
    for item in inside:
        total += size(item)
        if total > MOST_ITEMS:
            break
    return total


class TooLong(Exception):
    """The functions of a script call one another so often that reading it would not end."""


@define(kw_only=True)
class Facts:
    """Everything that a script says about compiling, in the order in which it says it."""

    configs: list[Config] = field(factory=list)
    backends: list[ScriptBackend] = field(factory=list)
    compiles: list[CompileCall] = field(factory=list)
    marks: list[tuple[str, tuple[int, ...] | None]] = field(factory=list)
    """(argument, dimensions) of each mark_dynamic; None for the dimensions of a mark_static."""
    gears: list[tuple[str, Mapping[int, tuple[int, ...]]]] = field(factory=list)
    """(argument, {dimension: sizes}) of each torchair.inference.set_dim_gears."""
    levels: dict[str, str] = field(factory=dict)
    artifacts: list[str] = field(factory=list)
    hcom: list[tuple[int, str, str]] = field(factory=list)
    """(line, code, why it may not be called) of each patch_for_hcom."""
    in_models: dict[str, dict[str, list[int]]] = field(factory=dict)
    """{what is decided: {function: lines}} of the scopes and events in a model's own code."""
    unread: list[Unread] = field(factory=list)


@define(eq=False)
class Analysis:
    """What is known at one place of a script: the facts so far, the branches around it, the work that is left."""

    torch_npu: str
    steps_left: int
    facts: Facts = field(factory=Facts)
    rounds_deep: int = 0
    """How many loops are read round for round at this place."""
    set_by: dict[tuple[int, str], ast.AST] = field(factory=dict)
    """{(configuration, path): the statement in a round that set it last}."""
    branch: tuple[Branch, ...] = ()
    """The branches and loops that this place lies in; empty where an assignment certainly happens."""

    @property
    def doubt(self) -> str:
        """Why an assignment at this place may not happen; empty where it certainly does."""
        return self.branch[-1].why if self.branch else ""

    def doubt_of(self, made: Config | Items) -> str:
        """Why an option of a configuration, or a key, may not be set at this place although the object is made."""
        shared = sum(1 for one, other in zip(self.branch, made.branch, strict=False) if one is other)
        return self.branch[-1].why if len(self.branch) > shared else ""

    @contextmanager
    def doubting(self, why: str) -> Iterator[None]:
        before, self.branch = self.branch, (*self.branch, Branch(why=why))
        yield  # what is raised inside ends the reading
        self.branch = before

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise TooLong

    def code(self, node: ast.AST) -> str:
        """The text of a part of the script. It takes the longer the longer it is."""
        text = ast.unparse(node)
        self.step(1 + len(text) // 20)
        return text

    def option(self, base: Config | At, name: str, value: Value, s: ast.AST) -> None:
        place = inside(base, name)
        config, path = place.config, place.path
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
