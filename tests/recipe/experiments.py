"""The experiments whose scripts are kept as golden texts."""

from __future__ import annotations

EXPERIMENTS: dict[str, list[str]] = {
    "mm_abs_sub": ["experiment=mm_abs_sub"],
    "decode": [
        "experiment=decode",
        "model.layers=1",
        "model.hidden=64",
        "model.ffn=64",
        "model.heads=2",
        "compiler.debug.aclgraph.clone_input=false",
        "shapes.mark_static=['*']",
    ],
    "sink": [
        "mode=max-autotune",
        "model=linear_scalar",
        "tiling=sink",
        "compiler.ge_config.oo_level=O1",
        "compiler.debug.graph_dump.type=pbtxt",
        "compiler.debug.graph_dump.path=dumps",
        "compile.fullgraph=false",
        "logs.artifacts=[graph_code]",
        "+logs.levels.torchair=DEBUG",
        "shapes.mark_static=[x]",
    ],
    "branches": [
        "mode=npugraph_ex",
        "model=parallel_branches",
        "model.depth=2",
        "passes=[cse,stream_plan]",
        "compiler.npugraph_ex.clone_output=true",
        "compiler.npugraph_ex.use_graph_pool=shared",
        "compiler.npugraph_ex.super_kernel_optimize=true",
        "+compiler.npugraph_ex.super_kernel_optimize_options={a: 1}",
    ],
    "dynamic": [
        "mode=max-autotune",
        "model=moe_shared_expert",
        "model.tokens=8",
        "model.hidden=16",
        "model.ffn=16",
        "model.shared_ffn=16",
        "passes=[cse,stream_plan]",
        "passes.stream_plan.stage=post",
        "shapes=dynamic",
        "+shapes.mark_dynamic.x=[0]",
    ],
}
