"""Run as a process of its own: exec scripts against the genuine configuration classes and print what became of them.

Only the classes are loaded (option_trees.load_configs), so that CANN is not asked for and any version's wheel will do.
Reads `{"tree": folder of torch_npu/, "version": its version, "scripts": [[package, script, mode, {path: value}], …]}`
from stdin, writes one entry for each script: {leaves: {attribute path: value}, tree: what `of_config` makes of the
object, as_dict: the object's own, as_dict_by_yaml and leaves_by_yaml: those of an object with the options of the
mapping set on it, as the engine sets them}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from npucompose.npu.torchair.config import write
from npucompose.recipe import of_config
from npucompose.recipe.vendor_options import Package, attributes, patterns_of
from npucompose.targets.npu_offline.option_trees import load_configs
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.versions import tree_of

POOL = (0, 1)


def main() -> None:
    order = json.load(sys.stdin)
    classes = load_configs(Path(order["tree"]))
    for package, cls in classes.items():
        sys.modules[package].CompilerConfig = cls  # type: ignore[attr-defined]
    sys.modules["torch_npu"] = ModuleType("torch_npu")
    import torch

    torch.npu = SimpleNamespace(graph_pool_handle=lambda: POOL)  # type: ignore[attr-defined]
    print(json.dumps([one(classes, order["version"], *entry) for entry in order["scripts"]]))


def one(
    classes: Mapping[str, type[Any]], version: str, package: Package, script: str, mode: str, options: dict[str, Any]
) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(script, "ejected.py", "exec"), names)
    if "compiler_config" in names:
        config = names["compiler_config"]()
    else:
        from npugraph_ex.configs import compiler_config as ex  # type: ignore[import-not-found]

        config = ex.CompilerConfig()
        ex._process_kwargs_options(config, {"options": names["options"]() if "options" in names else {}})
    paths = {leaf.genuine_path for leaf in attributes(package, version).values()}
    unread: list[Any] = []
    engine = by_yaml(classes[package](), version, mode, options)

    def leaves(of: Any) -> dict[str, Any]:
        return {path: value(of, path) for path in sorted(paths) if not path.startswith("post_grad")}

    return {
        "leaves": leaves(config),
        "leaves_by_yaml": leaves(engine),
        "tree": of_config(config, unread, torch_npu_version=version),
        "unread": [line.code.partition(" ")[0] for line in unread],
        "as_dict": as_dict(config),
        "as_dict_by_yaml": as_dict(engine),
    }


def by_yaml(config: Any, version: str, mode: str, options: dict[str, Any]) -> Any:
    """A fresh object with every option of an experiment set as npucompose sets it."""
    config.mode = mode
    tree = tree_of(version)
    for path, given in CompilerOptions(values=options, torch_npu_version=version).changed().items():
        write(config, tree[path], given)
    return config


def as_dict(config: Any) -> list[dict[str, str]]:
    """Local and global options, whole; torchair's holds an option object or two where it means their values."""
    return [{str(key): str(getattr(held, "_value", held)) for key, held in part.items()} for part in config.as_dict()]


def value(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    held = getattr(config, "_value", config)
    return patterns_of(held) if callable(held) else held


if __name__ == "__main__":
    main()
