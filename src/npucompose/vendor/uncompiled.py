"""Ways in which TorchAir compiles nothing and runs a graph eagerly, read from `uncompiled.yaml`. Loads no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from npucompose.input_safety import yaml_loader
from npucompose.table.structure import structure
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.option_specs import shown


@frozen(kw_only=True)
class Uncompiled:
    """One way: which options lead there, what runs, and which options still act."""

    when: Mapping[str, str | bool | None]
    modes: tuple[str, ...]
    runs: str
    passes: bool
    acts: tuple[str, ...]
    acts_with: Mapping[str, tuple[str, ...]] = field(factory=dict[str, tuple[str, ...]])
    source: str

    def applies(self, options: CompilerOptions, mode: str) -> bool:
        return mode in self.modes and all(
            options[path] is not None if value is None else options[path] == value for path, value in self.when.items()
        )

    def leaves(self, path: str, options: CompilerOptions) -> bool:
        """Whether an option still acts."""
        more = (one for switch, others in self.acts_with.items() if options[switch] for one in others)
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in (*_table()["everywhere"], *self.acts, *more))

    def why(self, options: CompilerOptions) -> str:
        """`compiler.debug.run_eagerly=true: TorchAir compiles nothing and runs eagerly: the FX graph that …`."""
        beside = [
            f"compiler.{path}={shown(options[path])}" + ("" if path in options.values else " (its default)")
            for path in tuple(self.when)[1:]
        ]
        condition = f", as long as {' and '.join(beside)}" if beside else ""
        return f"{self.switch(options)}: TorchAir compiles nothing{condition}, and runs eagerly: {self.runs}"

    def switch(self, options: CompilerOptions) -> str:
        """`compiler.debug.run_eagerly=true`."""
        first = next(iter(self.when))
        return f"compiler.{first}={shown(options[first])}"


def uncompiled(options: CompilerOptions, mode: str) -> Uncompiled | None:
    """The way that the options lead to in a mode; None where TorchAir compiles."""
    return next((way for way in ways() if way.applies(options, mode)), None)


@cache
def ways() -> tuple[Uncompiled, ...]:
    return tuple(structure(Uncompiled, row, f"ways[{at}]") for at, row in enumerate(_table()["ways"]))


@cache
def _table() -> Mapping[str, Any]:
    file = Path(__file__).with_suffix(".yaml")
    return yaml.load(file.read_text(encoding="utf-8"), yaml_loader())
