"""Genuine option objects and names as ours: `CompilerConfig` attributes to YAML paths. Imports no vendor package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from npucompose.errors import ConfigError, did_you_mean
from npucompose.schema.compiler import LEAVES, CompilerOptions
from npucompose.schema.leaf import ELSEWHERE, Leaf, shown
from npucompose.schema.legality import twins

Package = Literal["torchair", "npugraph_ex"]
HOOKS = {"post_grad_custom_pre_pass": "pre", "post_grad_custom_post_pass": "post"}


@frozen(kw_only=True)
class Unread:
    """What could not be read: `Unread(line=12, code="config.mode = args.mode", why="…")`; line 0 is the object."""

    line: int
    code: str
    why: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.code}: {self.why}"


def _by_attribute(package: Package) -> dict[str, Leaf]:
    """{attribute path of the genuine object: leaf}; a leaf with a private and a public name is found by both."""
    found: dict[str, Leaf] = {}
    for path, leaf in LEAVES.items():
        if path.startswith("npugraph_ex.") == (package == "npugraph_ex"):
            found[path.removeprefix("npugraph_ex.")] = found[leaf.genuine_path] = leaf
    return found


ATTRIBUTES: Mapping[Package, Mapping[str, Leaf]] = {p: _by_attribute(p) for p in ("torchair", "npugraph_ex")}
MODE: Mapping[Package, str] = {"torchair": "max-autotune", "npugraph_ex": "npugraph_ex"}
"""The mode of a configuration that sets none."""


def group_of(package: Package, path: str) -> bool:
    """Whether an attribute path is a sub-configuration: `debug.aclgraph`."""
    return any(name.startswith(f"{path}.") for name in ATTRIBUTES[package])


def set_option(package: Package, values: dict[str, Any], attribute: str, value: Any) -> str | None:
    """Put `{YAML path: value}` into `values`; or say, in words, why the assignment cannot be taken."""
    leaf = ATTRIBUTES[package].get(attribute)
    if leaf is None:
        hint = did_you_mean(attribute, ATTRIBUTES[package]).strip()
        return f"{package}'s CompilerConfig has no such option. {hint}".strip()
    if leaf.set_by not in ("compiler", "mode"):
        return f"it has no place in YAML: {ELSEWHERE[leaf.set_by]}"
    if leaf.kind == "bool" and value in (0, 1):
        value = bool(value)  # the genuine class takes 0 and 1 too
    try:
        values[leaf.path] = leaf.checked(value)
    except ValueError as error:
        return str(error)
    return None


def translated(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """torchair's options under its own mode="npugraph_ex" as npugraph_ex's: (values, what has no twin there)."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    for path, value in values.items():
        twin = twins().get(path)
        if twin is None or not twin.path.startswith("npugraph_ex."):
            lost.append(f"{path}={shown(value)} has no counterpart among npugraph_ex's options")
            continue
        kept[twin.path] = (not value) if twin.twin_inverted else value
    return kept, lost


def of_config(config: Any, unread: list[Unread] | None = None) -> dict[str, Any]:
    """The YAML tree of a live CompilerConfig (torchair's or npugraph_ex's): only what differs from the defaults.

    `of_config(config)` is `{"mode": {"name": "reduce-overhead"}, "compiler": {"debug": {…}}}`. Works on any object
    with those attributes. What YAML cannot say (a pass in a hook, a filter function) is a ConfigError, or is appended
    to `unread` where that is given.
    """
    package: Package = "torchair" if hasattr(config, "ge_config") else "npugraph_ex"
    values: dict[str, Any] = {}
    refused: list[Unread] = []
    found = False
    for leaf in LEAVES.values():
        attribute = leaf.genuine_path
        if leaf.path.startswith("npugraph_ex.") != (package == "npugraph_ex"):
            continue
        there, value = _read(config, attribute)
        found |= there
        if not there or value == leaf.default:
            continue
        if leaf.kind == "pool" and not isinstance(value, str):
            value = "pool"  # a handle says no name, and any name is a pool
        if why := set_option(package, values, attribute, value):
            refused.append(Unread(line=0, code=f"{attribute} = {value!r}", why=why))
    if not found:
        raise ConfigError(f"a {type(config).__name__} has none of the options of a CompilerConfig.")
    mode = values.pop("mode", values.pop("npugraph_ex.mode", MODE[package]))
    if package == "torchair" and mode == "npugraph_ex":
        values, lost = translated(values)
        refused += [Unread(line=0, code=text.split("=")[0], why=text) for text in lost]
    if refused and unread is None:
        raise ConfigError(*map(str, refused))
    (unread if unread is not None else []).extend(refused)
    tree: dict[str, Any] = {"mode": {"name": mode}}
    options = CompilerOptions(values=values).as_tree(changed_only=True)
    return {**tree, "compiler": options} if options else tree


def _read(config: Any, attribute: str) -> tuple[bool, Any]:
    """(is it there, its value): the genuine option objects keep what was set as `_value`."""
    at = config
    for part in attribute.split("."):
        if not hasattr(at, part):
            return False, None
        at = getattr(at, part)
    value = getattr(at, "_value", at)
    return True, tuple(value) if isinstance(value, list) else value
