"""vLLM's CPU, with a recipe: compilation stays at mode 3 and goes through this package's classes."""

from __future__ import annotations

import os
from typing import Any

from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.platforms.cpu import CpuPlatform  # pyright: ignore[reportMissingImports]

from npucompose_vllm import steps
from npucompose_vllm.configuration import BACKEND, NOT_PADDED, set_by
from npucompose_vllm.recipe import Recipe, recipe_of

logger = init_logger("vllm.npucompose")
HERE = "npucompose_vllm"
ACTS = "NPUCOMPOSE_RECIPE_ACTS"
"""Set where an engine was given a recipe: what asks where no configuration is current, in this process or in one that
vLLM starts, asks for that engine."""
ATTENTION = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class RecipePlatform(CpuPlatform):
    """Without a recipe, vLLM's own CpuPlatform in every answer."""

    @classmethod
    def get_compile_backend(cls) -> str:
        """Ours where the engine that asks has a recipe. A configuration that is just being made asks for a default, and
        no engine has it yet: then vLLM's own name, on which it decides which of its operators are compiled."""
        return f"{HERE}.compiler.RecipeCompiler" if _has_recipe(False) else super().get_compile_backend()

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return f"{HERE}.passes.RecipePassManager" if _has_recipe(ACTS in os.environ) else super().get_pass_manager_cls()

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        return (
            f"{HERE}.recordings.RecordedGraph"
            if _has_recipe(ACTS in os.environ)
            else super().get_static_graph_wrapper_cls()
        )

    @classmethod
    def get_attn_backend_cls(cls, *asked: Any, **named: Any) -> str:
        """vLLM's own; where a recipe acts, its attention of decoders with less Python around the same kernels."""
        found = super().get_attn_backend_cls(*asked, **named)
        return f"{HERE}.attention.LeanAttentionBackend" if found == ATTENTION and _has_recipe(False) else found

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """vLLM's own, and where a recipe was given what it says of compilation."""
        from vllm.config import CompilationMode  # pyright: ignore[reportMissingImports]
        from vllm.v1.attention.selector import _cached_get_attn_backend  # pyright: ignore[reportMissingImports]

        _cached_get_attn_backend.cache_clear()  # chosen for an engine that has a recipe, or for one that has none
        recipe = recipe_of(vllm_config.additional_config)
        asked = vllm_config.compilation_config.mode
        super().check_and_update_config(vllm_config)
        if steps.asked(vllm_config.additional_config) is not None:
            _with_our_worker(vllm_config)
        if recipe is None:
            return
        if asked != CompilationMode.VLLM_COMPILE or vllm_config.lora_config is not None:
            why = "LoRA" if vllm_config.lora_config is not None else f"compilation mode {asked}"
            logger.warning("The recipe %s does not act: %s.", recipe.path, why)
            return
        os.environ[ACTS] = recipe.path
        compile_by(recipe, vllm_config)


def _has_recipe(otherwise: bool) -> bool:
    """Whether the configuration that is current in vLLM has one; `otherwise` where none is current."""
    from vllm.config import get_current_vllm_config_or_none  # pyright: ignore[reportMissingImports]

    config = get_current_vllm_config_or_none()
    return otherwise if config is None else config.compilation_config.backend == BACKEND


def compile_by(recipe: Recipe, vllm_config: Any) -> None:
    """Set vLLM's configuration as the recipe says, and say each size that it cannot have."""
    config, most = vllm_config.compilation_config, vllm_config.scheduler_config.max_num_batched_tokens
    sizes, beyond = recipe.sizes_within(most)
    if beyond:
        logger.warning("Sizes %s of the recipe are above max_num_batched_tokens=%d: left out.", beyond, most)
    pads = _takes_padded_rows(vllm_config.model_config)
    if recipe.options.graphs == "piecewise" and not pads:
        logger.warning(NOT_PADDED)
    for option, value in set_by(recipe, sizes, pads=pads).items():
        _set(config, option, value)
    os.environ["VLLM_USE_AOT_COMPILE"] = "0"  # its artifacts hold Inductor's code and nothing that is around it
    _with_our_worker(vllm_config)
    for line in recipe.checked.effective:
        logger.info("%s: asked %s, acts as %s: %s.", line.option, line.requested, line.effective, line.why)
    logger.info(
        "Recipe %s: %s graphs for %s tokens; any other number runs by %s.",
        recipe.path,
        recipe.options.graphs,
        sizes,
        recipe.others,
    )


def _takes_padded_rows(model_config: Any) -> bool:
    """A reload of vLLM's configuration has no model."""
    return model_config is None or not model_config.use_mla


def _with_our_worker(vllm_config: Any) -> None:
    if vllm_config.parallel_config.worker_cls == WORKER:
        vllm_config.parallel_config.worker_cls = f"{HERE}.worker.RecipeWorker"


def _set(config: Any, option: str, value: Any) -> None:
    """One option of the compilation configuration, by its dotted name."""
    from vllm.config import CompilationMode, CUDAGraphMode  # pyright: ignore[reportMissingImports]

    names = {"mode": CompilationMode, "cudagraph_mode": CUDAGraphMode}
    group, _, inner = option.partition(".")
    if not inner:
        setattr(config, option, names[option][value] if option in names else value)
    elif isinstance(owner := getattr(config, group), dict):
        owner[inner] = value
    else:
        setattr(owner, inner, value)
