"""What a script says about compiling."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import asdict, define, field

from npucompose.recipe.values import CompileCall, Config, ScriptBackend
from npucompose.recipe.vendor_options import Unread


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
    in_models: list[tuple[str, str, int]] = field(factory=list)
    """(what is decided, function, line or 0) of the scopes and events in a model's own code."""
    elsewhere: dict[int, str] = field(factory=dict)
    """{line: code} of what may compile with a configuration of the script, and is not in it."""
    unread: list[Unread] = field(factory=list)

    def add(self, other: Facts) -> None:
        for name, more in asdict(other, recurse=False).items():
            mine = getattr(self, name)
            mine.extend(more) if isinstance(more, list) else mine.update(more)
