"""What of a request takes effect, and who said each value of an experiment: for the report and for `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class Effective:
    """`Effective(option="compiler.ge_config.oo_level", requested="O1", effective="O3", why="…")`."""

    option: str
    """Dotted path in the experiment."""
    requested: Any
    effective: Any
    """The value that is as good as in force; None where there is none."""
    why: str


COMMAND_LINE = "command line"

DEFAULT = "default"
"""Origins that are no file; those of files may say `…, chosen on the command line`."""


@frozen(kw_only=True)
class Setting:
    """`Setting(option="mode.name", value="eager", said_by="conf/mode/eager.yaml, chosen on the command line", …)`."""

    option: str
    value: Any
    said_by: str
    """`command line`, a file of conf/ with who chose it, or `default`."""
    why_not: str | None = None
    """Why it does not take effect as asked; None: it does."""


def origin(provenance: Mapping[str, str], name: str) -> str:
    """Of the value itself, or of what it lies in."""
    while name:
        if name in provenance:
            return provenance[name]
        name = name.rpartition(".")[0]
    return DEFAULT


def settings(
    values: Mapping[str, Any], provenance: Mapping[str, str], effective: tuple[Effective, ...]
) -> tuple[Setting, ...]:
    """One for each of `values` ({dotted option: value}), in their order."""
    why_not = {one.option: one.why for one in effective}
    return tuple(
        Setting(option=name, value=value, said_by=origin(provenance, name), why_not=why_not.get(name))
        for name, value in values.items()
    )
