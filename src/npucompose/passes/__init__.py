"""Rewrites of FX graphs: the passes by name, what they share, and the pipeline that runs and proves them.

What only reads a graph belongs into graphs/, and nothing here knows a device. A new pass is a file, a line here, a YAML
and a golden test; importing this loads no torch and no pass.
"""

from __future__ import annotations

from npucompose.passes.base import Pass
from npucompose.registry import Registry

PASSES: Registry[type[Pass]] = Registry(
    kind="pass",
    base=Pass,
    group="npucompose.passes",
    built_in=(
        ("adapt", "npucompose.passes.adapt:Adapt"),
        ("cancel_moves", "npucompose.passes.cancel_transposes:CancelTransposes"),
        ("cse", "npucompose.passes.simplify:Cse"),
        ("dead_code", "npucompose.passes.simplify:DeadCode"),
        ("python", "npucompose.passes.base:PythonPass"),
        ("remove_noop", "npucompose.passes.simplify:RemoveNoop"),
        ("replace", "npucompose.passes.replace:Replace"),
        ("fold_parameters", "npucompose.passes.fold_parameters:FoldParameters"),
        ("stream_plan", "npucompose.passes.scopes:StreamPlan"),
        ("core_limit", "npucompose.passes.scopes:CoreLimit"),
        ("super_kernel", "npucompose.passes.scopes:SuperKernel"),
    ),
)

__all__ = ["PASSES", "Pass"]
