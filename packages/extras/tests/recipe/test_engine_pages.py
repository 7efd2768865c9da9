"""What is made of the settings of serving projects, and what recipes are in theirs: whole answers as golden texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from npucompose.recipe import Exported, Imported, export, import_command_line
from npucompose.recipe.imported import import_settings

NEEDS_VLLM = pytest.mark.skipif(
    find_spec("npucompose_vllm") is None, reason="extensions.vllm is a section of npucompose-vllm"
)
CANN = "cann-recipes-infer"
V0_11 = "vllm-ascend 0.11"
OMNI = "omni-infer"
ASCEND = "vllm-ascend"
SETTINGS: dict[str, dict[str, Any]] = {
    f"{CANN}: npugraph_ex, each switch on": {
        "exe_mode": "npugraph_ex",
        "enable_static_kernel": True,
        "enable_superkernel": True,
        "enable_cache_compile": True,
        "enable_dynamic_graph": False,
        "platform_version": "950",
    },
    f"{CANN}: npugraph_ex, nothing beside": {"model_config": {"exe_mode": "npugraph_ex"}},
    f"{CANN}: ge_graph, each switch on": {
        "exe_mode": "ge_graph",
        "enable_static_kernel": True,
        "enable_superkernel": True,
        "enable_cache_compile": True,
        "enable_dynamic_graph": True,
        "micro_batch_mode": 1,
        "enable_limit_core": False,
    },
    f"{CANN}: ge_graph, nothing beside": {"exe_mode": "ge_graph"},
    f"{CANN}: acl_graph": {"exe_mode": "acl_graph", "enable_cache_compile": True, "enable_superkernel": True},
    f"{CANN}: acl_graph, nothing beside": {"exe_mode": "acl_graph"},
    f"{CANN}: eager": {
        "exe_mode": "eager",
        "enable_static_kernel": True,
        "enable_superkernel": True,
        "enable_cache_compile": True,
    },
    f"{V0_11}: on": {"torchair_graph_config": {"enabled": True}},
    f"{V0_11}: its defaults turned round": {
        "torchair_graph_config": {
            "enabled": True,
            "enable_frozen_parameter": False,
            "enable_view_optimize": False,
            "use_cached_graph": True,
            "mode": "reduce-overhead",
            "graph_batch_sizes": [8],
            "graph_batch_sizes_init": True,
        }
    },
    f"{V0_11}: a mode that TorchAir has not": {"torchair_graph_config": {"enabled": True, "mode": "strange"}},
    f"{V0_11}: off": {
        "torchair_graph_config": {"enabled": False, "graph_batch_sizes": [8], "enable_multistream_moe": True}
    },
    f"{V0_11}: not said to be on": {"torchair_graph_config": {"use_cached_graph": True}},
    f"{OMNI}: level 0": {"graph_model_compile_config": {"level": 0, "use_aclgraph": True, "decode_gear_list": [1, 2]}},
    f"{OMNI}: level 1": {"graph_model_compile_config": {"level": 1}},
    f"{OMNI}: level 1, each key": {
        "graph_model_compile_config": {
            "level": 1,
            "use_ge_graph_cached": True,
            "decode_gear_list": [16, 32],
            "block_num_floating_range": 0,
            "aclgraph_capture_sizes": [1],
            "aclgraph_num_of_warmups": 2,
            "backend": "npu",
        }
    },
    f"{OMNI}: level 1, captured": {"graph_model_compile_config": {"level": 1, "use_aclgraph": True}},
    f"{OMNI}: level 2": {"graph_model_compile_config": {"level": 2, "use_ge_graph_cached": False}},
    f"{OMNI}: level 3": {"graph_model_compile_config": {"level": 3, "use_ge_graph_cached": True}},
    f"{ASCEND}: nothing beside": {"ascend_compilation_config": {}, "weight_nz_mode": 1},
    f"{ASCEND}: static kernels of sizes": {
        "ascend_compilation_config": {"enable_static_kernel": True, "fuse_muls_add": False},
        "compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [4, 1]},
    },
    f"{ASCEND}: static kernels without sizes": {"ascend_compilation_config": {"enable_static_kernel": True}},
    f"{ASCEND}: sizes without static kernels": {
        "ascend_compilation_config": {"enable_npugraph_ex": True},
        "compilation_config": {"cudagraph_capture_sizes": [4, 1], "custom_ops": ["all"], "of_a_later_one": {"a": 1}},
    },
    f"{ASCEND}: npugraph_ex off": {
        "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": True},
        "compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": 8},
        "multistream_overlap_gate": True,
        "enable_super_kernel": True,
        "enable_multistream_mla": False,
    },
    f"{ASCEND}: in pieces": {
        "ascend_compilation_config": {"enable_npugraph_ex": True, "enable_static_kernel": True},
        "compilation_config": {"cudagraph_mode": "PIECEWISE"},
    },
    f"{ASCEND}: captured never": {
        "ascend_compilation_config": {"enable_static_kernel": True},
        "compilation_config": {"cudagraph_mode": "NONE", "cudagraph_capture_sizes": [1]},
    },
    f"{ASCEND}: enforce_eager": {"enforce_eager": True, "enable_cpu_binding": True},
    f"{ASCEND}: -O0": {"optimization_level": 0, "weight_nz_mode": 0},
    f"{ASCEND}: -O1": {"optimization_level": 1, "weight_nz_mode": 0},
    "vllm: nothing but a mode of graphs": {"compilation_config": {"cudagraph_mode": "full"}},
    "vllm: levels of its older versions": {"compilation_config": {"level": 0, "cudagraph_mode": "CUDAGraphMode.NONE"}},
    "vllm: a mode goes before a level": {"compilation_config": {"mode": "stock_torch_compile", "level": 3}},
    "vllm: eager once and for all": {
        "enforce_eager": True,
        "compilation_config": {
            "mode": 3,
            "cudagraph_capture_sizes": [1],
            "inductor_compile_config": {"freezing": True},
            "pass_config": {"enable_noop": True, "fuse_norm_quant": None},
        },
    },
    "vllm: enforce_eager=false is nothing": {"enforce_eager": "false", "optimization_level": 1},
    "vllm: guards dropped": {"optimization_level": 0, "compilation_config": {"mode": 2, "cudagraph_mode": "NONE"}},
    "vllm: traced once, recorded for decoding": {
        "compilation_config": {"mode": 1, "backend": "eager", "cudagraph_mode": "FULL_DECODE_ONLY"}
    },
    "vllm: traced, and no more": {
        "compilation_config": {"mode": 3, "backend": "eager", "cudagraph_mode": "NONE", "cudagraph_capture_sizes": []}
    },
    "vllm: a compiler that nobody knows": {"compilation_config": {"mode": 3, "backend": "openxla"}},
    "vllm: a compiler that nobody asks": {"compilation_config": {"mode": 0, "backend": "openxla"}},
    "vllm: the sizes compiled": {
        "cudagraph_capture_sizes": [2, 1],
        "compilation_config": {"compile_sizes": [1, 2], "pass_config": {"eliminate_noops": False}},
    },
    "vllm: other sizes compiled than recorded": {
        "compilation_config": {"compile_sizes": [1], "cudagraph_capture_sizes": [2, 1]}
    },
    "vllm: no sizes compiled": {"compilation_config": {"compile_sizes": [], "cudagraph_capture_sizes": [2, 1]}},
    "vllm: Inductor's options": {
        "compilation_config": {
            "cudagraph_mode": "NONE",
            "inductor_compile_config": {"cpp": {"threads": 2}, "max_autotune": True},
        }
    },
    "vllm: groups that are empty": {
        "enforce_eager": True,
        "compilation_config": {"inductor_compile_config": {}, "pass_config": {}},
    },
    "vllm: a configuration that is empty": {"compilation_config": {}, "optimization_level": 0},
    "vllm: the configuration alone": {"cudagraph_mode": "PIECEWISE", "mode": 3, "max_cudagraph_capture_size": 8},
}  # fmt: skip
COMMANDS = (
    "vllm serve m -O2 --max-model-len 4096",
    """vllm serve m -O3 --additional-config '{"npucompose": "recipe.yaml"}'""",
)
SIZES = "+extensions={vllm: {sizes: [4, 1, 4]}}"
PIECES = "+extensions={vllm: {graphs: piecewise, general: eager, sizes: [2, 1]}}"
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "fused kernels, recorded": ("mode=max-autotune", "shapes=auto"),
    "fused kernels, each size for itself": ("mode=max-autotune", "shapes=static", SIZES),
    "fused kernels in pieces": ("mode=max-autotune", "shapes=auto", "inductor.max_autotune=false", PIECES),
    "fused kernels, not recorded": (
        "mode=max-autotune", "shapes=static", "inductor.replay=wrapper", "inductor.epilogue_fusion=false",
        "inductor.freezing=true", "strict=off",
    ),
    "the kernels of eager": ("mode=reduce-overhead", "shapes=static", "passes=remove_noop", SIZES),
    "the kernels of eager in pieces": ("mode=reduce-overhead", "shapes=auto", "passes=cse", PIECES),
    "npugraph_ex": ("mode=npugraph_ex", "shapes=auto", SIZES),
    "npugraph_ex in pieces": ("mode=npugraph_ex", "shapes=dynamic", PIECES),
    "eager": ("mode=eager", "shapes=auto", SIZES, "logs.levels.torchair=DEBUG"),
    "dimensions that are marked": ("mode=reduce-overhead", "shapes=auto", "shapes.mark_static=[x]", "model=add"),
    "dimensions that are symbols": ("mode=max-autotune", "shapes=auto", "+shapes.mark_dynamic.x=[0]", "model=add"),
    "one graph or several": ("mode=max-autotune", "shapes=auto", "compile.fullgraph=false", "tiling=sink"),
}  # fmt: skip


def page(about: str, found: Imported) -> str:
    sections = [f"{name}: {json.dumps(section)}" for name, section in found.tree.items()]
    said = [*(f"note: {note}" for note in found.notes), *(f"not read: {line}" for line in found.unread)]
    return "\n".join([f"# {about}", *sections, *said, ""])


def command(about: str, exported: Exported) -> str:
    without = [f"no equivalent: {line['option']}: {line['why']}" for line in exported.without_equivalent]
    told = {name: value for name, value in exported.as_dict().items() if name != "without_equivalent"}
    return "\n".join([f"# {about}", *(f"{name}: {json.dumps(value)}" for name, value in told.items()), *without, ""])


def test_the_settings_of_serving_projects_are_read_like_this(golden: Callable[[str, str], None]) -> None:
    read = [page(about, import_settings(json.dumps(given))) for about, given in SETTINGS.items()]
    read += [page(given, import_command_line(given)) for given in COMMANDS]
    golden("recipe/engine_settings.txt", "\n".join(read))


@NEEDS_VLLM
def test_recipes_are_written_for_serving_projects_like_this(golden: Callable[[str, str], None]) -> None:
    written = [
        command(f"{about}, for {to}", export(*given, to=to))
        for about, given in EXPERIMENTS.items()
        for to in ("vllm", "vllm-ascend", "sglang")
    ]
    golden("recipe/engine_exports.txt", "\n".join(written))
