"""TorchAir's option objects and names as ours: `CompilerConfig` attributes to YAML paths. Imports no vendor package."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from types import CodeType
from typing import Any, Literal

from attrs import frozen

from npucompose.errors import ConfigError, did_you_mean
from npucompose.npu.torchair.config import node_filter
from npucompose.vendor.compiler import CompilerOptions, twins
from npucompose.vendor.option_specs import ELSEWHERE, OptionSpec, shown
from npucompose.vendor.versions import REFERENCE, known, tree_of

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


@cache
def attributes(package: Package, torch_npu: str = REFERENCE) -> Mapping[str, OptionSpec]:
    """{attribute path of the vendor's object: leaf}; a leaf with a private and a public name is found by both."""
    found: dict[str, OptionSpec] = {}
    for path, leaf in tree_of(torch_npu).items():
        if path.startswith("npugraph_ex.") == (package == "npugraph_ex"):
            found[path.removeprefix("npugraph_ex.")] = found[leaf.genuine_path] = leaf
    return found


MODE: Mapping[Package, str] = {"torchair": "max-autotune", "npugraph_ex": "npugraph_ex"}
"""The mode of a configuration that sets none."""


def group_of(package: Package, path: str, torch_npu: str = REFERENCE) -> bool:
    """Whether an attribute path is a sub-configuration: `debug.aclgraph`."""
    return any(name.startswith(f"{path}.") for name in attributes(package, torch_npu))


def set_option(
    package: Package, values: dict[str, Any], attribute: str, value: Any, torch_npu: str = REFERENCE
) -> str | None:
    """Put `{YAML path: value}` into `values`; or say, in words, why the assignment cannot be taken."""
    there = attributes(package, torch_npu)
    leaf = there.get(attribute)
    if leaf is None:
        hint = did_you_mean(attribute, there).strip()
        return f"{package}'s CompilerConfig has no such option. {hint}".strip()
    if leaf.set_by not in ("compiler", "mode"):
        return f"it has no place in YAML: {ELSEWHERE[leaf.set_by]}"
    if leaf.kind == "bool" and value in (0, 1):
        value = bool(value)  # the vendor's class takes 0 and 1 too
    try:
        values[leaf.path] = leaf.checked(value)
    except ValueError as error:
        return str(error)
    return None


def translated(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """torchair's options under its own mode="npugraph_ex" as npugraph_ex's: (values, what has no twin there)."""
    known = {path: twin for path in values if (twin := twins().get(path)) and twin.path.startswith("npugraph_ex.")}
    kept = {twin.path: (not values[path]) if twin.twin_inverted else values[path] for path, twin in known.items()}
    without = {path: value for path, value in values.items() if path not in known}
    why = "has no counterpart among npugraph_ex's options"
    return kept, [f"{path}={shown(value)} {why}" for path, value in without.items()]


def of_config(
    config: Any, unread: list[Unread] | None = None, *, torch_npu_version: str | None = None
) -> dict[str, Any]:
    """The YAML tree of a live CompilerConfig (torchair's or npugraph_ex's): only what differs from the defaults.

    `of_config(config)` is `{"mode": {"name": "reduce-overhead"}, "compiler": {"debug": {…}}}`. Works on any object
    with those attributes. What YAML cannot say (a pass in a hook, a filter of its own) is a ConfigError, or is appended
    to `unread` where that is given. `torch_npu_version` says whose class it is, where it is not that of 2.13.0.
    """
    torch_npu = REFERENCE if torch_npu_version is None else known(torch_npu_version)
    package: Package = "torchair" if hasattr(config, "ge_config") else "npugraph_ex"
    values: dict[str, Any] = {}
    refused: list[Unread] = []
    found = False
    for leaf in {leaf.path: leaf for leaf in attributes(package, torch_npu).values()}.values():
        attribute = leaf.genuine_path
        there, value = _read(config, attribute)
        found |= there
        if not there or value == leaf.default:
            continue
        if leaf.kind == "names" and callable(value):
            value = patterns_of(value) or value
        if leaf.kind == "pool" and not isinstance(value, str):
            value = "pool"  # a handle says no name, and any name is a pool
        if why := set_option(package, values, attribute, value, torch_npu):
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
    options = CompilerOptions(values=values, torch_npu_version=torch_npu_version).as_tree(changed_only=True)
    return {**tree, "compiler": options} if options else tree


def _read(config: Any, attribute: str) -> tuple[bool, Any]:
    """(is it there, its value): the vendor's option objects keep what was set as `_value`."""
    try:
        at = attrgetter(attribute)(config)
    except AttributeError:
        return False, None
    value = getattr(at, "_value", at)
    return True, tuple(value) if isinstance(value, list) else value


def filter_source() -> str:
    """The text that a script makes a filter of nodes with; npucompose gives the vendor's object the same function."""
    return inspect.getsource(node_filter).rstrip()


def is_node_filter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a script's function is that one, whatever its comments say."""
    return function.name == node_filter.__name__ and _meaning(function) == _meaning(ast.parse(filter_source()).body[0])


def _meaning(function: Any) -> str:
    """Signature and body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return "\n".join(ast.dump(part) for part in (function.args, *body))


def patterns_of(function: Any) -> tuple[str, ...] | None:
    """The patterns of a live filter that this function made, here or pasted into a script; None for any other."""
    code = getattr(function, "__code__", None)
    if code is None or _compiled(code) != _compiled(node_filter(()).__code__):
        return None
    return tuple(inspect.getclosurevars(function).nonlocals["patterns"])


def _compiled(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, wherever it was written: equal code objects also have equal line numbers."""
    consts = [_compiled(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    named = [const for const in consts if not (isinstance(const, str) and const.endswith("<genexpr>"))]
    return (code.co_code, code.co_names, code.co_freevars, tuple(named))
