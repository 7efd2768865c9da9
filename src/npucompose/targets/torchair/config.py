"""CompilerOptions -> the genuine configuration object: every requested leaf set, every other untouched."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets.base import ModeSupport
from npucompose.vendor.compiler import EVERY_LEAF, CompilerOptions
from npucompose.vendor.option_specs import OptionSpec


def node_filter(patterns: tuple[str, ...]) -> Callable[[Any], Any]:
    """f(node) -> node or None, as `debug.data_dump.filter` wants it: `node_filter(("mm", "aten.add*"))`.

    A pattern is compared with the node's name, the whole operator (`aten.mm.default`) and the operator without its
    overload (`aten.mm`).
    """

    def chosen(node: Any) -> Any:
        called = str(node.target)
        names = (node.name, called, called.rpartition(".")[0])
        return node if any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns) else None

    return chosen


PREFIX = "npugraph_ex."
EAGER = "eager"
DEPRECATED = "mode=reduce-overhead: TorchAir has deprecated it and will drop it; mode=npugraph_ex takes its place."


@frozen(kw_only=True)
class TorchairMode(ModeSupport):
    """What TorchAir makes of one of our modes."""

    package: Literal["torchair", "npugraph_ex"] = "torchair"
    """Which of the vendor's two packages compiles, never both in one process."""
    ge: bool = False
    """A graph for GE; otherwise kernels are captured."""
    scope_namespace: str = "air"
    clone_option: str | None = None
    """Without it TorchAir 2.13.0 returns the tensors of its capture again (`AclGraph.reconstruct_outputs`)."""
    deprecated: str = ""


def _leaves(mode: str) -> frozenset[str]:
    """All that act in the mode: each is set on the genuine object. What CANN makes of it only a device shows."""
    return frozenset(path for path, leaf in EVERY_LEAF.items() if mode in leaf.modes)


MODES: Mapping[str, TorchairMode] = {
    GE: TorchairMode(options=_leaves(GE), trains=True, caches=True, exports=True, ge=True),
    ACLGRAPH: TorchairMode(
        options=_leaves(ACLGRAPH),
        captures=True,
        caches=True,
        clone_option="debug.aclgraph.enable_output_clone",
        deprecated=DEPRECATED,
    ),
    NPUGRAPH_EX: TorchairMode(
        options=_leaves(NPUGRAPH_EX),
        captures=True,
        caches=True,
        clone_option="npugraph_ex.clone_output",
        package="npugraph_ex",
        scope_namespace="npugraph_ex",
    ),
    EAGER: TorchairMode(options=_leaves(EAGER), compiles=False),
}
"""mode=max-autotune is TorchAir's GE graph, reduce-overhead and npugraph_ex are captured graphs."""

Hook = Callable[[Any, Any, Any], None]
_POOLS: dict[str, Any] = {}


def torchair_config(options: CompilerOptions, mode: str, before: Hook, after: Hook, files: Path | None = None) -> Any:
    """torchair.CompilerConfig for max-autotune and reduce-overhead; `before` and `after` are its two pass hooks.

    Folders that TorchAir writes into lie below `files`.
    """
    config = package("torchair").CompilerConfig()
    config.mode = mode
    for path, value in _requested(options, files).items():
        if not path.startswith(PREFIX):
            write(config, EVERY_LEAF[path], value)
    config.post_grad_custom_pre_pass = before
    config.post_grad_custom_post_pass = after
    return config


def npugraph_ex_options(
    options: CompilerOptions, before: Hook, after: Hook, files: Path | None = None
) -> dict[str, Any]:
    """What `torch.compile(backend="npugraph_ex", options=…)` takes: a flat mapping."""
    flat = {
        EVERY_LEAF[path].genuine_path: _given(EVERY_LEAF[path], value)
        for path, value in _requested(options, files).items()
        if path.startswith(PREFIX)
    }
    return {**flat, "post_grad_custom_pre_pass": before, "post_grad_custom_post_pass": after}


def _requested(options: CompilerOptions, files: Path | None) -> dict[str, Any]:
    """What was asked for; and where something is written that was asked for, the folder: made here, below `files`."""
    requested = dict(options.changed())
    if files is None:
        return requested
    for path, leaf in EVERY_LEAF.items():
        if leaf.written and leaf.needs and options[leaf.needs]:
            folder = files / (options[path] or "")  # an absolute path stays what it is
            folder.mkdir(parents=True, exist_ok=True)
            requested[path] = str(folder)
    return requested


def npugraph_ex_config(flat: Mapping[str, Any]) -> Any:
    """npugraph_ex.CompilerConfig with a flat mapping's values: the package does the same when it compiles."""
    config = package("npugraph_ex").CompilerConfig()
    config.mode = NPUGRAPH_EX
    for name, value in flat.items():
        _refusing(f"npugraph_ex.{name}", value, lambda name=name, value=value: setattr(config, name, value))
    return config


def decompositions(names: Sequence[str], mode: str) -> dict[Any, Any]:
    """{operator: torch's own decomposition}; `aten.addmm` stands for all its overloads.

    For GE also those of `workarounds.py`, of operators for which TorchAir has no converter.
    """
    from torch._decomp import decomposition_table

    from npucompose.targets.torchair.workarounds import convertible

    known = {str(operator): operator for operator in decomposition_table if hasattr(operator, "overloadpacket")}
    found: dict[Any, Any] = convertible() if MODES[mode].ge else {}
    problems: list[str] = []
    for name in names:
        operators = [op for text, op in known.items() if text == name or text.rpartition(".")[0] == name]
        found.update({operator: decomposition_table[operator] for operator in operators})
        if not operators:
            near = unknown("operator with a decomposition", name, sorted({t.rpartition(".")[0] for t in known}))
            problems.append(f"{near.partition(' Choices:')[0]} @ target.decompose")
    if problems:
        raise ConfigError(*problems)
    return found


def package(name: str) -> Any:
    """The genuine `torchair` or `npugraph_ex`, which Target.prepare has made importable. Never both in one process."""
    return importlib.import_module(name)


def write(config: Any, leaf: OptionSpec, value: Any) -> None:
    """Set one leaf by its genuine path: `debug.graph_dump._path`."""
    *groups, name = leaf.genuine_path.split(".")
    at = config
    for group in groups:
        at = getattr(at, group)
    _refusing(leaf.path, value, lambda: setattr(at, name, _given(leaf, value)))


def read(config: Any, leaf: OptionSpec) -> Any:
    """The value that the genuine object holds for a leaf, as YAML would say it; a pool's handle as it is."""
    at = config
    for part in leaf.genuine_path.split("."):
        at = getattr(at, part)
    stored = at.__dict__["_value"] if "_value" in getattr(at, "__dict__", {}) else at
    return tuple(stored) if isinstance(stored, list) else stored


def _given(leaf: OptionSpec, value: Any) -> Any:
    """The value as the genuine class takes it: a pool's name becomes a handle, which needs a device."""
    return pool(value) if leaf.kind == "pool" and value is not None else _genuine_value(leaf, value)


def _genuine_value(leaf: OptionSpec, value: Any) -> Any:
    """What the genuine object is given for a value of ours: a list for a tuple, a function for patterns of names."""
    if leaf.kind == "names" and value is not None:
        return node_filter(value)
    return list(value) if isinstance(value, tuple) else value


def pool(name: str) -> Any:
    """The graph memory pool of that name, one in a process: captures that name the same pool share its memory."""
    import torch

    if name not in _POOLS:
        npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
        _POOLS[name] = npu.graph_pool_handle()
    return _POOLS[name]


def _refusing(path: str, value: Any, act: Callable[[], None]) -> None:
    """What the genuine class refuses and our table let through, with the option's path."""
    try:
        act()
    except (ValueError, TypeError, FileNotFoundError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"compiler.{path}={value!r}: the genuine class refuses it: {first}") from error
