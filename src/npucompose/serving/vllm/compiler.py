"""vLLM's CompilerInterface over this package's backend: a piece of a model, for one number of tokens.

Any other number of tokens goes to vLLM's own Inductor, or runs as it is, as the recipe says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from vllm.compilation.compiler_interface import (  # pyright: ignore[reportMissingImports]
    CompilerInterface,
    EagerAdaptor,
    InductorStandaloneAdaptor,
)
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from npucompose.serving.vllm.pieces import Piece, Unrecorded, compiled
from npucompose.serving.vllm.recipe import Recipe, recipe_of

logger = init_logger("vllm.npucompose")


class RecipeCompiler(CompilerInterface):
    """One for each model that vLLM compiles; `compute_hash` is called first and says by which recipe.

    With `shapes.dynamic` a piece is compiled once and each size recorded from that; otherwise each size is compiled for
    itself, and any other number of tokens by vLLM's own Inductor, or not at all.
    """

    name = "npucompose"

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        self.own: Any = None
        """vLLM's compiler for what the recipe does not compile."""
        self.pieces: list[Piece] = []
        self.unrecorded = Unrecorded((), "", logger.warning)

    def compute_hash(self, vllm_config: Any) -> str:
        self.recipe = recipe_of(vllm_config.additional_config)
        assert self.recipe is not None
        config, general = vllm_config.compilation_config, self.recipe.options.general
        self.own = EagerAdaptor() if general == "eager" else InductorStandaloneAdaptor(config.compile_cache_save_format)
        self.unrecorded = Unrecorded(self.recipe.sizes, general, logger.warning)
        return f"{self.recipe.key[:20]}{self.own.compute_hash(vllm_config)}"

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self.own.initialize_cache(cache_dir, disable_cache, prefix)

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: list[Any],
        compiler_config: dict[str, Any],
        compile_range: Any,
        key: str | None = None,
    ) -> tuple[Callable[..., Any] | None, Any | None]:
        assert self.recipe is not None
        if self.recipe.each_size_alone and not compile_range.is_single_size():
            called, handle = self.own.compile(graph, example_inputs, compiler_config, compile_range, key)
            return self._saying(called), handle
        manager = compiler_config[current_platform.pass_key]
        memory = self.pieces[0].backend.common_memory if self.pieces else None
        piece = compiled(self.recipe, graph, example_inputs, compiler_config, manager, self.unrecorded, memory)
        self.pieces.append(piece)
        return piece, None

    def _saying(self, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.unrecorded.came(next((arg for arg in args if type(arg) is int), 0))
            return called(*args)

        return call
