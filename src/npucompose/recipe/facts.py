"""What a script says about compiling, and which of its assignments compete for an option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import asdict, define, field

from npucompose.recipe.values import Cells, CompileCall, Config, Const, ScriptBackend, Unknown, competitor
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


def unsettled(cells: Cells) -> Iterator[tuple[str, Const, str]]:
    """(option, assignment that competes for it, why it is not certain)"""
    for path, cell in cells.items():
        rivals = cell.either if isinstance(cell, Unknown) else ()
        for value in rivals:
            if isinstance(value, Const) and isinstance(cell, Unknown) and value.node is not None:
                others = [competitor(other) for other in rivals if other is not value]
                against = f", against {' or '.join(others)}" if others else ", and another value may come after it"
                yield path, value, f"{cell.why}{against}"
