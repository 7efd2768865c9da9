"""What becomes of vLLM's compilation options where a recipe acts: each with what the recipe sets and why.

Imports nothing of vLLM: the table holds what its CompilationConfig has in the version that it was read for. Members of
enumerations there are their names here; an option of a group has the group's name before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npucompose_vllm.recipe import Recipe

ACTING_MODE = "VLLM_COMPILE"
"""The compilation mode in which vLLM asks a compiler of others for the pieces of a model."""
BACKEND = "npucompose"
"""What vLLM's configuration calls the recipe's compiler."""
GROUPS = ("pass_config", "dynamic_shapes_config", "inductor_compile_config", "inductor_passes")
"""Options that hold others."""
DEFAULTS: Mapping[str, Any] = {
    "mode": ACTING_MODE,
    "debug_dump_path": None,
    "cache_dir": "",
    "compile_cache_save_format": "binary",
    "backend": "inductor",
    "custom_ops": ["none"],
    "ir_enable_torch_wrap": False,
    "splitting_ops": None,
    "compile_mm_encoder": False,
    "cudagraph_mm_encoder": False,
    "encoder_cudagraph_token_budgets": [],
    "encoder_cudagraph_max_vision_items_per_batch": 0,
    "encoder_cudagraph_max_frames_per_batch": None,
    "cudagraph_decoder_replay": True,
    "decoder_replay_cudagraph_capture_sizes": [],
    "decoder_replay_trim_threshold": 768,
    "compile_sizes": None,
    "compile_ranges_endpoints": None,
    "cudagraph_mode": "NONE",
    "cudagraph_num_of_warmups": 0,
    "cudagraph_capture_sizes": [],
    "cudagraph_copy_inputs": False,
    "cudagraph_specialize_lora": True,
    "use_inductor_graph_partition": False,
    "pass_config.fuse_norm_quant": False,
    "pass_config.fuse_act_quant": False,
    "pass_config.fuse_attn_quant": False,
    "pass_config.eliminate_noops": True,
    "pass_config.fuse_allreduce_rms": False,
    "pass_config.enable_qk_norm_rope_fusion": False,
    "pass_config.fuse_rope_kvcache_cat_mla": False,
    "pass_config.fuse_act_padding": False,
    "pass_config.fuse_mla_dual_rms_norm": False,
    "pass_config.fuse_rope_kvcache": False,
    "pass_config.fuse_qk_norm_rope_kvcache": False,
    "pass_config.rope_kvcache_fusion_max_token_num": 256,
    "pass_config.fi_allreduce_fusion_max_size_mb": None,
    "max_cudagraph_capture_size": None,
    "dynamic_shapes_config.type": "BACKED",
    "dynamic_shapes_config.evaluate_guards": False,
    "dynamic_shapes_config.assume_32_bit_indexing": False,
    "fast_moe_cold_start": False,
}
"""On a processor, where nothing is asked (vllm/config/compilation.py, vllm/platforms/cpu.py); None is also what vLLM
finds by itself: where it cuts a model, and the largest number of tokens."""
FUSIONS = tuple(name for name, value in DEFAULTS.items() if name.startswith("pass_config.") and value is False)
"""Passes over kernels that only another platform's vLLM has: its pass manager on a processor cannot make them."""
OF_A_GPU, BY_VLLM = "vLLM has its kernels on other devices only", "vLLM sets it on a processor"
NO_GRAPHS = "vLLM on a processor captures no CUDA graph"
WITHOUT_EFFECT: Mapping[str, str] = {
    "cudagraph_mm_encoder": NO_GRAPHS,
    "encoder_cudagraph_token_budgets": NO_GRAPHS,
    "encoder_cudagraph_max_vision_items_per_batch": NO_GRAPHS,
    "encoder_cudagraph_max_frames_per_batch": NO_GRAPHS,
    "cudagraph_decoder_replay": NO_GRAPHS,
    "decoder_replay_cudagraph_capture_sizes": NO_GRAPHS,
    "decoder_replay_trim_threshold": NO_GRAPHS,
    "cudagraph_num_of_warmups": "a recording needs no call before it",
    "cudagraph_specialize_lora": "with LoRA vLLM does not compile with a recipe",
    "pass_config.rope_kvcache_fusion_max_token_num": OF_A_GPU,
    "pass_config.fi_allreduce_fusion_max_size_mb": OF_A_GPU,
}
"""Options whatever value of which changes nothing on a processor with a recipe."""
WHY: Mapping[str, str] = {
    "backend": "the recipe's compiler takes the pieces",
    "compile_sizes": "shapes=static compiles each of extensions.vllm.sizes",
    "cudagraph_mode": "extensions.vllm.graphs says what a recording holds",
    "cudagraph_capture_sizes": "extensions.vllm.sizes names them",
    "max_cudagraph_capture_size": "extensions.vllm.sizes names each",
    "splitting_ops": "extensions.vllm.graphs=full leaves a model whole",
    "use_inductor_graph_partition": "extensions.vllm.graphs says where a recording ends",
    "ir_enable_torch_wrap": BY_VLLM,
    "inductor_compile_config.enable_auto_functionalized_v2": "Inductor puts vLLM's operators in place",
    "inductor_compile_config.dce": BY_VLLM,
    "inductor_compile_config.size_asserts": BY_VLLM,
    "inductor_compile_config.nan_asserts": BY_VLLM,
    "inductor_compile_config.epilogue_fusion": BY_VLLM,
    "inductor_compile_config.cpp.dynamic_threads": BY_VLLM,
    "compile_ranges_endpoints": "vLLM adds the largest number of tokens",
    **dict.fromkeys(FUSIONS, OF_A_GPU),
}
"""Why an option may act as another value than was asked."""
BY_PROCESSOR: Mapping[str, Any] = {
    "cudagraph_mode": "NONE",
    "cudagraph_capture_sizes": [],
    "ir_enable_torch_wrap": False,
    "inductor_compile_config.dce": True,
    "inductor_compile_config.size_asserts": False,
    "inductor_compile_config.nan_asserts": False,
    "inductor_compile_config.epilogue_fusion": True,
    "inductor_compile_config.cpp.dynamic_threads": True,
}
"""What vLLM sets on a processor, whatever is asked."""
NOT_PADDED = (
    "extensions.vllm.graphs=piecewise: vLLM's attention with a latent cache takes no padded rows on a processor, so "
    "that each size is recorded for itself and no step is filled up to the next one."
)
"""vllm/v1/attention/backends/mla/cpu_mla.py, do_kv_cache_update: as many slots as real rows."""


def set_by(recipe: Recipe, sizes: Sequence[int], *, pads: bool = True) -> dict[str, Any]:
    """What a recipe sets, by option, whatever is asked; `sizes` are those that vLLM's scheduler can have.

    `pads`: the model takes padded rows, so that vLLM may fill a step up to the next size between attentions.
    """
    found: dict[str, Any] = {
        "mode": ACTING_MODE,
        "backend": BACKEND,
        "compile_sizes": list(sizes) if recipe.each_size_alone else [],
        "use_inductor_graph_partition": False,
        "inductor_compile_config.enable_auto_functionalized_v2": True,
        **dict.fromkeys(FUSIONS, False),
    }
    if recipe.options.graphs == "full":
        return {**found, "splitting_ops": []}
    if sizes and pads:
        found |= {
            "cudagraph_mode": "PIECEWISE",
            "cudagraph_capture_sizes": list(sizes),
            "max_cudagraph_capture_size": sizes[-1],
        }
    return found


def effective(recipe: Recipe, asked: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Every option as it acts, as the version of vLLM that was read has it; of those without effect what is asked.

    `most` is the largest number of tokens in a step.
    """
    ranges = {"compile_ranges_endpoints": sorted({*(asked.get("compile_ranges_endpoints") or ()), most})}
    return {**DEFAULTS, **asked, **ranges, **BY_PROCESSOR, **set_by(recipe, recipe.sizes_within(most)[0])}


def why(recipe: Recipe, option: str) -> str:
    """Why an option acts otherwise than it was asked for, or than without a recipe."""
    if option == "splitting_ops" and recipe.options.graphs == "piecewise":
        return "vLLM cuts a model at its attentions"
    return WHY.get(option, "vLLM decides it by itself")


def without_effect(recipe: Recipe, option: str) -> str | None:
    """Why no value of an option changes anything with this recipe; None where one does."""
    own = recipe.each_size_alone and recipe.options.general == "inductor"
    group = option.partition(".")[0]
    if group in ("inductor_compile_config", "inductor_passes") and not own and not recipe.fuses:
        return f"Inductor compiles nothing in mode={recipe.checked.experiment.mode.name}"
    if option == "compile_cache_save_format" and not own:
        return "vLLM's own compiler compiles nothing with this recipe"
    if option == "cudagraph_copy_inputs" and recipe.options.graphs == "full":
        return "a recording finds its inputs where they lie"
    return WITHOUT_EFFECT.get(option)


def flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(option, value) of a compilation configuration as JSON has it."""
    for name, value in tree.items():
        if name in GROUPS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value
