"""What the names of a script stand for while it is read."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import define, field, frozen

from npucompose.recipe.genuine import MODE, Package

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
class Argument:
    """An input of the model, or a parameter of a function, by name."""

    name: str


@frozen(kw_only=True)
class Dotted:
    """A module or something of it, under its full name: `torchair.CompilerConfig`."""

    name: str


@frozen(kw_only=True, eq=False)
class Doubt:
    """A branch or a loop that may not be run: `Doubt(why="it depends on a condition")`."""

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
    branch: tuple[Doubt, ...] = ()
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
class Backend:
    config: Config


@frozen(kw_only=True)
class Pool:
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
    branch: tuple[Doubt, ...] = ()
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
Value: TypeAlias = "Const | Unknown | Argument | Dotted | Config | At | Backend | Pool | Filter | Logger | Held"


@frozen(kw_only=True)
class MarkCall:
    """mark_static (dims is None) or mark_dynamic of one argument."""

    argument: str
    dims: tuple[int, ...] | None


@frozen(kw_only=True)
class GearsCall:
    """torchair.inference.set_dim_gears of one argument."""

    argument: str
    gears: Mapping[int, tuple[int, ...]]


@frozen(kw_only=True, eq=False)
class Compile:
    """One torch.compile or cache_compile; a keyword that was not given has that function's own default."""

    config: Config
    dynamic: bool | None
    fullgraph: bool
    node: ast.Call
    cached: bool = False
    """It is TorchAir's cache_compile."""


def plain(value: Value) -> Any:
    """The value as YAML would hold it; None for what is no plain value (and for None itself)."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Pool):
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


def where_of(base: Config | At, name: str) -> tuple[Config, str]:
    """(configuration, attribute path) of `base.name`."""
    return (base, name) if isinstance(base, Config) else (base.config, f"{base.path}.{name}")
