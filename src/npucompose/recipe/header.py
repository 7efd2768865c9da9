"""The comment block of an ejected script that says which experiment it came from: plain YAML, checked, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import yaml

from npucompose.errors import ConfigError, listed
from npucompose.input_safety import plain_yaml
from npucompose.vendor.compiler import CompilerOptions

BEGIN, END = "# npucompose recipe, read by `npucompose recipe import`:", "# end of recipe"
SECTIONS = (
    "mode",
    "shapes",
    "tiling",
    "passes",
    "streams",
    "adapt",
    "compiler",
    "target",
    "model",
    "compile",
    "logs",
    "seed",
    "strict",
)
"""What of an experiment a script carries, each a mapping but the last two; stages, measurement and expectations are not
a script's business."""


def from_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The carried sections of a composed tree; of the compiler options only those that differ from the defaults."""
    data = {name: tree[name] for name in SECTIONS if name in tree}
    data["compiler"] = CompilerOptions.of_tree(data.get("compiler") or {}).as_tree(changed_only=True)
    if not (data.get("adapt") or {}).get("rules"):
        data.pop("adapt", None)
    return {name: value for name, value in data.items() if value not in ({}, [], None)}


def written(data: Mapping[str, Any]) -> list[str]:
    """The block, of printable characters only: where some are not, all that are not ASCII are written as escapes."""
    text = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(dict(data), sort_keys=False, width=100)
    return [BEGIN, *(f"#   {line}".rstrip() for line in text.splitlines()), END]


def read(source: str) -> dict[str, Any] | None:
    """The block of a script, or None when it has none; ConfigError when there is one that cannot be a recipe."""
    lines = [line.rstrip() for line in source.splitlines()]
    if BEGIN not in lines:
        return None
    start = lines.index(BEGIN)
    if END not in lines[start:]:
        raise ConfigError(f"line {start + 1}: a recipe begins here and '{END}' does not follow.")
    block = lines[start + 1 : lines.index(END, start)]
    text = "\n".join(line.removeprefix("#").removeprefix("   ") for line in block)
    data = plain_yaml(text, f"line {start + 1}: the recipe's YAML")
    if not isinstance(data, dict):
        raise ConfigError(f"line {start + 1}: the recipe must be a mapping of {listed(SECTIONS)}.")
    tree = cast("dict[Any, Any]", data)
    strange = [str(name) for name in tree if name not in SECTIONS]
    if strange:
        raise ConfigError(
            f"line {start + 1}: unknown section {listed(strange)} in the recipe. Known: {listed(SECTIONS)}."
        )
    flat = [name for name, value in tree.items() if not isinstance(value, Mapping | None) and name not in SECTIONS[-2:]]
    if flat:
        raise ConfigError(f"line {start + 1}: {listed(flat)} in the recipe must be a mapping of names to values.")
    return {str(name): value for name, value in tree.items()}
