"""vLLM's CPU, with a recipe: compilation stays at mode 3 and goes through this package's classes."""

from __future__ import annotations

import os
from typing import Any

from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.platforms.cpu import CpuPlatform  # pyright: ignore[reportMissingImports]

from npucompose.serving.vllm.recipe import Recipe, recipe_of

logger = init_logger("vllm.npucompose")
HERE = "npucompose.serving.vllm"
ACTS = "NPUCOMPOSE_RECIPE_ACTS"
"""Set where an engine was given a recipe: processes that vLLM starts get the finished configuration, and ask their own
platform for its classes."""
WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
BACKEND = "npucompose"
"""What vLLM's configuration calls this compiler."""


class RecipePlatform(CpuPlatform):
    """Without a recipe, vLLM's own CpuPlatform in every answer."""

    @classmethod
    def get_compile_backend(cls) -> str:
        return f"{HERE}.compiler.RecipeCompiler" if ACTS in os.environ else super().get_compile_backend()

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return f"{HERE}.passes.RecipePassManager" if ACTS in os.environ else super().get_pass_manager_cls()

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        return f"{HERE}.recordings.RecordedGraph" if ACTS in os.environ else super().get_static_graph_wrapper_cls()

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """vLLM's own, and where a recipe was given what it says of compilation."""
        from vllm.config import CompilationMode  # pyright: ignore[reportMissingImports]

        recipe = recipe_of(vllm_config.additional_config)
        asked = vllm_config.compilation_config.mode
        super().check_and_update_config(vllm_config)
        if recipe is None:
            return
        if asked != CompilationMode.VLLM_COMPILE or vllm_config.lora_config is not None:
            why = "LoRA" if vllm_config.lora_config is not None else f"compilation mode {asked}"
            logger.warning("The recipe %s does not act: %s.", recipe.path, why)
            return
        os.environ[ACTS] = recipe.path
        compile_by(recipe, vllm_config)


def compile_by(recipe: Recipe, vllm_config: Any) -> None:
    """Set vLLM's configuration as the recipe says, and say each size that it cannot have."""
    from vllm.config import CompilationMode, CUDAGraphMode  # pyright: ignore[reportMissingImports]

    config, most = vllm_config.compilation_config, vllm_config.scheduler_config.max_num_batched_tokens
    config.mode, config.backend = CompilationMode.VLLM_COMPILE, BACKEND
    sizes = [size for size in recipe.sizes if size <= most]
    if beyond := [size for size in recipe.sizes if size > most]:
        logger.warning("Sizes %s of the recipe are above max_num_batched_tokens=%d: left out.", beyond, most)
    config.compile_sizes = sizes if recipe.each_size_alone else []
    os.environ["VLLM_USE_AOT_COMPILE"] = "0"  # its artifacts hold Inductor's code and nothing that is around it
    config.inductor_compile_config["enable_auto_functionalized_v2"] = True  # see passes.LeftToInductor
    if vllm_config.parallel_config.worker_cls == WORKER:
        vllm_config.parallel_config.worker_cls = f"{HERE}.worker.RecipeWorker"
    if recipe.options.graphs == "full":
        config.splitting_ops = []
    elif sizes:
        config.cudagraph_mode = CUDAGraphMode.PIECEWISE
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = sizes, sizes[-1]
    for line in recipe.checked.effective:
        logger.info("%s: asked %s, acts as %s: %s.", line.option, line.requested, line.effective, line.why)
    logger.info(
        "Recipe %s: %s graphs for %s tokens; any other number runs by %s.",
        recipe.path,
        recipe.options.graphs,
        sizes,
        recipe.options.general,
    )
