"""`set_and_read_back.py TREE PATH… < options.json`: set every leaf on a wheel's genuine objects, say what they hold.

Options come from the JSON (CompilerOptions.as_tree), `mode` from an experiment with that mode, the two hooks from the
pipelines that `passes=` makes. Printed are `leaves` ({path: does the object hold what it was given}), and of other
objects on which the PATHs were left alone `control` (the same) and `as_dict`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from npucompose import ops
from npucompose.compose.check import check
from npucompose.compose.engine import materialize
from npucompose.compose.tree import compose
from npucompose.npu.torchair.config import PREFIX, read, write
from npucompose.table.modes import NPUGRAPH_EX
from npucompose.targets.npu_offline.option_trees import load_configs
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.option_specs import OptionSpec
from npucompose.vendor.versions import REFERENCE, tree_of

POOL = (0, 1)
"""What stands for a handle: the name of a pool becomes one, which only a device gives."""


def asked(leaf: OptionSpec, options: CompilerOptions) -> Any:
    """What the leaf is to hold, from wherever it is set in YAML."""
    if leaf.set_by == "mode":
        modes = [m for m in ("reduce-overhead", "npugraph_ex") if m in (leaf.choices or ())]
        return check(compose([f"mode={modes[0]}"]), with_model=False).experiment.mode.name
    if leaf.set_by == "passes":
        stage = "pre" if "pre_pass" in leaf.path else "post"
        made = materialize(check(compose(["passes=[cse]", f"passes.cse.stage={stage}"]), with_model=False))
        pipeline = made.pre if stage == "pre" else made.post
        assert [label for label, _ in pipeline.passes] == ["cse"]
        return pipeline.as_torchair_hook()
    return options[leaf.path]


def held(leaf: OptionSpec, value: Any, now: Any) -> bool:
    """Whether the object holds the value; for a filter, whether it holds a function that works like one."""
    if leaf.kind == "names" and value is not None:
        node = type("Node", (), {"name": "mm", "target": "aten.mm.default"})()
        other = type("Node", (), {"name": "relu", "target": "aten.relu.default"})()
        return callable(now) and now(node) is node and now(other) is None
    wanted = POOL if leaf.kind == "pool" and value is not None else value
    return type(now) is type(wanted) and now == wanted


def package_of(leaf: OptionSpec) -> str:
    return NPUGRAPH_EX if leaf.path.startswith(PREFIX) else "torchair"


def main(tree: str, *left_alone: str) -> None:
    options = CompilerOptions.of_tree(json.load(sys.stdin))
    ops.define()
    torch.npu = SimpleNamespace(graph_pool_handle=lambda: POOL)  # type: ignore[attr-defined]
    classes = load_configs(Path(tree))
    wanted = [(leaf, asked(leaf, options)) for leaf in tree_of(options.torch_npu_version or REFERENCE).values()]
    leaves, _ = set_all(classes, wanted, ())
    control, as_dict = set_all(classes, wanted, left_alone)
    print("\n" + json.dumps({"leaves": leaves, "control": control, "as_dict": as_dict}))


def set_all(
    classes: Mapping[str, type[Any]], wanted: Sequence[tuple[OptionSpec, Any]], left_alone: Sequence[str]
) -> tuple[dict[str, bool], dict[str, dict[str, str]]]:
    """Fresh objects, every leaf but `left_alone` set: whether each holds its value, and as_dict() of each object."""
    configs = {package: cls() for package, cls in classes.items()}
    for leaf, value in wanted:
        if leaf.path not in left_alone:
            write(configs[package_of(leaf)], leaf, value)
    holds = {leaf.path: held(leaf, value, read(configs[package_of(leaf)], leaf)) for leaf, value in wanted}
    return holds, {package: _merged(config) for package, config in configs.items()}


def _merged(config: Any) -> dict[str, str]:
    """Local and global options together; npugraph_ex has one mapping."""
    said = config.as_dict()
    parts = said if isinstance(said, tuple) else (said,)
    return {str(key): str(value) for part in parts for key, value in part.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
