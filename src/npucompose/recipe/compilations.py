"""What a script says about compiling, which of its compilations an experiment is, and what a person assumes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs
from attrs import asdict, define, field

from npucompose.errors import ConfigError
from npucompose.recipe.values import (
    CONDITION,
    MISSING,
    NO_CALL,
    Cells,
    CompileCall,
    Config,
    Const,
    ScriptBackend,
    Unknown,
    merge,
)
from npucompose.recipe.vendor_options import Unread
from npucompose.vendor.option_specs import shown

ANOTHER = "the compilation that is told has another configuration"


class TooLong(Exception):
    """Reading a script would not end: its functions call, or its values depend on, one another too often."""


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
    in_models: list[tuple[str, str, int]] = field(factory=list)
    """(what is decided, function, line or 0) of the scopes and events in a model's own code."""
    elsewhere: dict[int, str] = field(factory=dict)
    """{line: code} of what may compile with a configuration of the script, and is not in it."""
    unread: list[Unread] = field(factory=list)

    def add(self, other: Facts) -> None:
        for name, more in asdict(other, recurse=False).items():
            mine = getattr(self, name)
            mine.extend(more) if isinstance(more, list) else mine.update(more)


def assumption(given: str) -> tuple[str, Any]:
    """`args.fast=True` is ("args.fast", True): a condition or a name as the script writes it, and a constant."""
    text, _, value = given.rpartition("=")
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval")), ast.literal_eval(value.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        raise ConfigError(
            f"--assume {given}: a condition or a name of the script, =, and a constant are wanted, as in "
            '--assume "args.fast=True".'
        ) from None


def compilations(facts: Facts) -> Sequence[CompileCall]:
    """All that a script compiles, each once; where it compiles nothing, one with each backend or each configuration."""
    configs = [backend.config for backend in facts.backends] or facts.configs
    other = Unknown(why="it is compiled elsewhere")
    dynamic, fullgraph = (other, other) if facts.elsewhere else (None, False)
    alone = [
        CompileCall(
            package=one.package, cells=one.cells, config=one, dynamic=dynamic, fullgraph=fullgraph, node=NO_CALL
        )
        for one in configs
    ]
    each: dict[tuple[str, str], CompileCall] = {}
    for one in facts.compiles or alone:
        each.setdefault((str(one), repr(one.values)), one)
    return list(each.values())


def chosen(every: Sequence[CompileCall], asked: int | None, notes: list[str]) -> CompileCall:
    """One of all compilations; a note names each of several. Of a call with one of several, what they share."""
    listed = "; ".join(f"{number}: {one}" for number, one in enumerate(every, 1))
    if asked is not None and not 1 <= asked <= len(every):
        raise ConfigError(f"--compilation {asked}: no compilation of the script has that number; it has {listed}.")
    number = asked or 1
    found = every[number - 1]
    if len(every) > 1:
        notes.append(f"of {len(every)} compilations, number {number} is told (--compilation N tells another): {listed}")
    rivals = [one for one in every if one.place and one.place == found.place]
    if asked is None and len(rivals) > 1:
        notes.append("which of several configurations it is compiled with is not certain: what they share is told")
        paths = {path for one in rivals for path in one.cells}
        shared = {path: merge([one.cells.get(path, MISSING) for one in rivals], CONDITION) for path in paths}
        modes = {one.mode for one in rivals}
        shared["mode"] = Const(value=modes.pop()) if len(modes) == 1 else Unknown(why=CONDITION)
        found = attrs.evolve(found, cells=Cells(values=shared))
    return found


def others(facts: Facts, every: Sequence[CompileCall], chosen: CompileCall) -> Iterator[Unread]:
    """The configurations and compilations of which an experiment cannot be one, too."""
    for config in facts.configs:
        if config.values and config.line != chosen.config.line:
            values = ", ".join(f"{path}={shown(value)}" for path, value in config.values.items())
            yield Unread(line=config.line, code="CompilerConfig()", why=f"{ANOTHER}; this one sets {values}")
    told = attrgetter("config", "dynamic", "fullgraph", "cached")
    for number, other in enumerate(every if facts.compiles else (), 1):
        if told(other) != told(chosen):
            why = f"only one of several compilations can be told: this one by --compilation {number}"
            yield Unread(line=other.node.lineno, code=str(other).partition(": ")[2], why=why)
