"""Passes by name. A new pass is one file, one line here, one YAML and one golden test. Loads no torch and no pass.

`npucompose.passes.pipeline` builds and runs them.
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
        ("cse", "npucompose.passes.cse:Cse"),
        ("dead_code", "npucompose.passes.dead_code:DeadCode"),
        ("python", "npucompose.passes.python:Python"),
        ("remove_noop", "npucompose.passes.remove_noop:RemoveNoop"),
        ("replace", "npucompose.passes.replace:Replace"),
        ("fold_parameters", "npucompose.passes.fold_parameters:FoldParameters"),
        ("stream_plan", "npucompose.passes.stream_plan:StreamPlan"),
        ("core_limit", "npucompose.passes.core_limit:CoreLimit"),
        ("super_kernel", "npucompose.passes.super_kernel:SuperKernel"),
    ),
)

__all__ = ["PASSES", "Pass"]
