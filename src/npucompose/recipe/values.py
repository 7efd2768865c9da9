"""What the names of a script stand for while it is read, and which facts it states. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

from attrs import define, evolve, field, frozen

from npucompose.errors import visible
from npucompose.recipe.vendor_options import MODE, Package

CONDITION, LOOP = "it depends on a condition", "it is in a loop"
TOO_MANY = "it holds too many values"
MOST_ITEMS = 10_000
"""Of a constant list or dict, what is in its lists counted too."""
MOST_LISTED = 8
"""Constants that compete for one place; of more none is listed."""
LOGGER = "logging.getLogger"
LOGGERS = frozenset(f"{top}{at}.logger" for top in ("torchair", "npugraph_ex") for at in ("", ".core.utils"))
NOT_CONSTANT = "its value is not a constant"
"""Why a value is `Unknown` of which there is nothing else to say."""
REST = "**"
"""Key of what only running the script would put into a dict, a list, an object or a configuration."""


NO_CALL = ast.Call(func=ast.Name("compile", ast.Load()), args=[], keywords=[], lineno=0, col_offset=0)
"""Of a compilation that no line of a script makes."""


class Cells(dict[str, "Value"]):
    """The names of a scope, the items of a dict, the options of a configuration: all that assignments change.

    `born` is the time of the reading at which they were made. What is read of a name was assigned before (`bound`),
    or the script would have ended there; a key may be missing.
    """

    __slots__ = ("born", "bound")

    def __init__(self, born: int = 0, bound: bool = False, values: Mapping[str, Value] = MappingProxyType({})) -> None:
        super().__init__(values)
        self.born, self.bound = born, bound


@frozen(kw_only=True)
class Const:
    value: Any
    node: Any = field(default=None, eq=False, repr=False)
    """The expression, or the assignment, that says it."""


@frozen(kw_only=True)
class Unknown:
    """A value that is not certain; `name` is how the script calls it."""

    why: str
    name: str = ""
    argument: bool = False
    """It is an argument of a function of the script, or a part of one."""
    either: tuple[Value, ...] = ()
    """Values that it may be; where it is `closed`, it is one of them."""
    closed: bool = False

    def __str__(self) -> str:
        """`it depends on a condition (line 3: fast): 'a' (line 4) or 'b' (line 6)`"""
        known = [competitor(value) for value in self.either if isinstance(value, (Const, Dotted))]
        return f"{self.why}: {' or '.join(known)}" if self.closed and len(known) == len(self.either) else self.why


@frozen(kw_only=True)
class Dotted:
    """A module or something of it, under its full name: `torchair.CompilerConfig`."""

    name: str


MISSING = Unknown(why="it is not set on every path")


@frozen(kw_only=True, eq=False)
class Options:
    """Options of a compilation, each certain or not: {YAML path: its value, `mode` included}."""

    package: Package
    cells: Cells = field(factory=Cells)

    @property
    def values(self) -> dict[str, Any]:
        """The options that are certain."""
        return {path: cell.value for path, cell in self.cells.items() if isinstance(cell, Const)}

    @property
    def mode(self) -> str | None:
        """None where it is not certain."""
        default = self.cells.get(REST, Const(value=MODE[self.package]))
        cell = self.cells.get("mode", self.cells.get("npugraph_ex.mode", default))
        return cell.value if isinstance(cell, Const) else None

    @property
    def options(self) -> dict[str, Any]:
        """The options that are certain, without the mode."""
        return {path: value for path, value in self.values.items() if path not in ("mode", "npugraph_ex.mode")}


@frozen(kw_only=True, eq=False)
class Config(Options):
    """One CompilerConfig; every alias of it is this same object. `#n` of its cells is a compilation with it so far."""

    line: int = 0
    hooks: dict[str, ast.AST] = field(factory=dict[str, ast.AST])


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


@frozen(kw_only=True, eq=False)
class Items:
    """A dict with text keys, or a list with its indices as keys."""

    cells: Cells = field(factory=Cells)
    listed: bool = False


@frozen(kw_only=True, eq=False)
class Object:
    """A class of the script, or an instance of one (`cls`); `bases` of a class are its own, foreign ones left out."""

    name: str
    cells: Cells = field(factory=Cells)
    cls: Object | None = None
    bases: tuple[Object, ...] = ()
    foreign: bool = False
    """A base class is unknown: its methods may change any attribute."""
    fields: tuple[str, ...] = ()
    node: Any = None
    instances: dict[int, Object] = field(factory=dict[int, "Object"])
    real: Object | None = None
    """The instance of which `super()` is another view."""

    @property
    def is_foreign(self) -> bool:
        """An attribute that is not found may be a method that changes others."""
        return self.foreign or any(part.is_foreign for part in (self.cls, *self.bases) if part is not None)

    def found(self, name: str) -> Value:
        """An attribute of its own, of its class or of the bases; MISSING where there is none."""
        own = self.cells.get(name, MISSING)
        for part in (self.cls, *self.bases):
            own = part.found(name) if own is MISSING and part is not None else own
        rest = self.cells.get(REST)
        return own if rest is None or isinstance(own, Def) or name in self.cells else rest


@define(kw_only=True, eq=False)
class Scope:
    """The names of a module, a class or a call of a function."""

    names: Cells
    parent: Scope | None = None
    elsewhere: dict[str, Scope] = field(factory=dict)
    """Names that are declared global or nonlocal."""
    home: Object | None = None
    """The class whose body it is."""

    def get(self, name: str) -> Value:
        at: Scope | None = self.elsewhere.get(name, self)
        while at is not None and name not in at.names:
            at = at.parent
        return MISSING if at is None else at.names[name]

    def top(self) -> Scope:
        return self if self.parent is None else self.parent.top()


@frozen(kw_only=True, eq=False)
class Def:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Scope
    owner: Object | None = None
    home: Object | None = None
    """The class in which it stands."""
    defaults: Mapping[str, Value] = field(factory=dict)
    maybe: str = ""
    """Why a call of it may not run its body, and gives something else than it returns."""


@frozen(kw_only=True, eq=False)
class Partial:
    """functools.partial: a function with some of its arguments."""

    function: Value
    node: ast.AST
    args: tuple[Value, ...]
    keywords: Mapping[str, Value]


@frozen(kw_only=True, eq=False)
class CompileCall(Options):
    """One torch.compile or cache_compile: the options at this call, and what may be set later, before the first call of
    the model. A keyword that was not given has that function's own default.
    """

    config: Config
    dynamic: bool | Unknown | None
    fullgraph: bool | Unknown
    node: ast.Call
    cached: bool = False
    """It is TorchAir's cache_compile."""
    place: tuple[Any, ...] = ()
    """Equal in the compilations of one call that is made with one of several configurations."""

    def __str__(self) -> str:
        """`line 12: torch.compile(mode=max-autotune, dynamic=True, fullgraph=False)`."""
        name = "cache_compile" if self.cached else "torch.compile" if self.node.lineno else "CompilerConfig"
        dynamic, fullgraph = ("?" if isinstance(v, Unknown) else v for v in (self.dynamic, self.fullgraph))
        said = f"mode={self.mode or '?'}, dynamic={dynamic}, fullgraph={fullgraph}"
        return f"line {self.node.lineno or self.config.line}: {name}({said})"


Held: TypeAlias = "Items | Object | Def | Partial | CompileCall"
Value: TypeAlias = "Const | Unknown | Dotted | Config | At | ScriptBackend | PoolHandle | Filter | Held"


def competitor(value: Value) -> str:
    """`'max-autotune' (line 3)`"""
    if isinstance(value, Const):
        said = repr(value.value)
        said = said if len(said) <= 60 else f"{said[:57]}..."
        return visible(said) + (f" (line {value.node.lineno})" if hasattr(value.node, "lineno") else "")
    return value.name if isinstance(value, Dotted) else "the default"


def identity(value: Value) -> Any:
    """Equal for what is one value; True is not 1."""
    return (type(value.value), repr(value.value)) if isinstance(value, Const) else value


def same(one: Value, other: Value) -> bool:
    return identity(one) == identity(other)


def merge(values: Iterable[Value], why: str, bound: bool = False) -> Value:
    """The value where all are one, else what is known of them; `bound` as of Cells."""
    kept: dict[Any, Value] = {}
    first, closed = Unknown(why=why), True
    for value in values:
        parts: tuple[Value, ...] = (value,)
        if isinstance(value, Unknown) and value is not MISSING:
            first, closed, parts = value if first.why == why else first, closed and value.closed, value.either
        for part in parts:
            if not (part is MISSING and bound):
                kept.setdefault(identity(part), part)
    if closed and len(kept) < 2:
        return next(iter(kept.values()), MISSING)
    many = len(kept) > MOST_LISTED
    either = tuple(part for part in kept.values() if not (many and isinstance(part, Const)))
    return evolve(first, either=either, closed=closed and not many)


def known(value: Value, room: list[int] | None = None) -> tuple[Any, str]:
    """(the value as YAML would hold it, why it has none); `room` is for so many values more."""
    room = [MOST_ITEMS] if room is None else room
    room[0] -= 1
    if room[0] < 0:
        return None, TOO_MANY
    if isinstance(value, Const):
        return value.value, ""
    if isinstance(value, PoolHandle):
        return value.name or "pool", ""
    if isinstance(value, Filter):
        return list(value.patterns), ""
    if not isinstance(value, Items):
        function = "it is a function" if isinstance(value, (Def, Partial)) else NOT_CONSTANT
        return None, str(value) if isinstance(value, Unknown) else function
    made: dict[str, Any] = {}
    for key, item in value.cells.items():
        made[key], why = known(item, room)
        if why:
            return None, why
    return [made[str(at)] for at in range(len(made))] if value.listed else made, ""


def plain(value: Value) -> Any:
    """The value as YAML would hold it; None for what is no plain value (and for None itself)."""
    return known(value)[0]


def why_not(value: Value) -> str:
    """Why a value is no plain one; empty where it is."""
    return known(value)[1]


def is_plain(value: Value) -> TypeGuard[Const | Items]:
    return isinstance(value, (Const, Items)) and not why_not(value)


def truth(value: Value) -> bool | None:
    """What a condition makes of it; None where that is not certain."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Items):
        return None if any(isinstance(v, Unknown) for v in value.cells.values()) else bool(value.cells)
    return True if isinstance(value, (Config, At, ScriptBackend, Def, Partial)) else None


def elements(value: Value) -> list[Value] | None:
    """What a loop goes through, or what is shared out among several names; None where it is not known."""
    if not isinstance(value, Items) or REST in value.cells:
        return None
    if any(map(may_miss, value.cells.values())):
        return None
    keys = list(value.cells)
    return [value.cells[str(at)] for at in range(len(keys))] if value.listed else [Const(value=key) for key in keys]


def may_miss(value: Value) -> bool:
    """Whether a key may not be there."""
    return isinstance(value, Unknown) and any(part is MISSING for part in value.either)


def inside(base: Config | At, name: str) -> At:
    """`base.name`"""
    return (
        At(config=base, path=name) if isinstance(base, Config) else At(config=base.config, path=f"{base.path}.{name}")
    )


def named(value: Value, name: str) -> Value:
    """A pool, or a value that is not known, takes the name of the first variable, attribute or key that holds it."""
    nameless = isinstance(value, (PoolHandle, Unknown)) and not value.name and value is not MISSING
    return evolve(value, name=name) if nameless else value


def module(name: str) -> Dotted:
    """Something of a module; TorchAir's logger goes by the name that Python's logging knows it by."""
    return logger(name.partition(".")[0]) if name in LOGGERS else Dotted(name=name)


def logger(name: str) -> Dotted:
    """`logger("torchair").name` is "logging.getLogger('torchair')"."""
    return Dotted(name=f"{LOGGER}({name!r})")


def from_environment(args: Sequence[Value]) -> Unknown:
    """`os.getenv("MODE", "reduce-overhead")`: which variable it is, and what holds where it is unset."""
    name = plain(args[0]) if args else None
    said = f"the environment variable {name}" if isinstance(name, str) else "an environment variable"
    default = args[1] if len(args) > 1 else None
    unset = f" (where it is unset: {plain(default)!r})" if isinstance(default, Const) else ""
    return Unknown(why=f"it is not constant: it comes from {said}{unset}", name=name if isinstance(name, str) else "")
