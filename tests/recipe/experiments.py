"""The experiments whose scripts are kept as golden texts."""

from __future__ import annotations

from functools import cache

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
        "+compiler.npugraph_ex.super_kernel_optimize_options={stream_fusion: 1}",
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
    "gears": [
        "mode=max-autotune",
        "model=add",
        "passes=cse",
        "shapes=dynamic",
        "+shapes.gears={x.0:[32,64],y.0:[32,64]}",
        "compiler.debug.data_dump.filter=[mm,aten.add*]",
    ],
    "gears_and_streams": [
        "mode=max-autotune",
        "model=moe_shared_expert",
        "model.tokens=8",
        "model.hidden=16",
        "model.ffn=16",
        "model.shared_ffn=16",
        "passes=[cse,stream_plan]",
        "shapes=dynamic",
        "+shapes.gears={x.0:[8,16]}",
        "compiler.inference_config.dynamic_gears_merge_policy=product",
    ],
}

OTHER_VERSIONS: dict[str, list[str]] = {
    "oldest": [
        "mode=reduce-overhead",
        "model=mm_abs_sub",
        "passes=stream_plan",
        "compiler.torch_npu_version=2.6.0",
        "compiler.debug.aclgraph.clone_input=false",
    ],
    "nested": [
        "mode=npugraph_ex",
        "model=mm_abs_sub",
        "passes=stream_plan",
        "compiler.torch_npu_version=2.8.0",
        "+compiler.npugraph_ex.debug.aclgraph.clone_input=false",
        "+compiler.npugraph_ex.debug.data_dump.filter=[mm]",
        "+compiler.npugraph_ex.aclgraph_config.use_custom_pool=shared",
    ],
    "flat": [
        "mode=npugraph_ex",
        "model=mm_abs_sub",
        "passes=stream_plan",
        "compiler.torch_npu_version=2.9.0",
        "compiler.npugraph_ex.clone_output=true",
    ],
}
"""Scripts for a torch_npu on which nothing is executed here."""


@cache
def ejected(name: str) -> str:
    """The script of one of them."""
    from npucompose.recipe import eject

    return eject(*{**EXPERIMENTS, **OTHER_VERSIONS}[name])
