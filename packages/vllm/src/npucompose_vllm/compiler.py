"""vLLM's CompilerInterface over this package's backend: the pieces of a model, by a recipe.

Any number of tokens that the recipe does not name runs by vLLM's own Inductor, or as it is, as the recipe says.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from vllm.compilation.compiler_interface import (  # pyright: ignore[reportMissingImports]
    CompilerInterface,
    EagerAdaptor,
    InductorStandaloneAdaptor,
)
from vllm.compilation.passes.inductor_pass import pass_context  # pyright: ignore[reportMissingImports]
from vllm.compilation.passes.ir.inplace_functionalization import (  # pyright: ignore[reportMissingImports]
    VllmIRInplaceFunctionalizationPass,
)
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from npucompose_vllm.passes import RecipePassManager, say
from npucompose_vllm.pieces import Piece, Unrecorded, compiled, restored
from npucompose_vllm.recipe import Recipe, recipe_of

logger = init_logger("vllm.npucompose")
FIRST, NOT_IN_KEYS = "pre_grad_custom_pass", "_cache_config_ignore_prefix"
"""Settings of Inductor's: a pass of vLLM's, and what is no part of the key of a graph in Inductor's cache."""
CODE = "inductor_cache"
"""Folder of Inductor's code, inside vLLM's for this model and recipe."""


class RecipeCompiler(CompilerInterface):
    """One for each model that vLLM compiles; `compute_hash` is called first and says by which recipe.

    With `shapes.dynamic` a piece is compiled once and each size recorded from that; otherwise each size is compiled for
    itself, and any other number of tokens by vLLM's own Inductor, or not at all.
    """

    name = "npucompose"

    def __init__(self) -> None:
        self.vllm_config: Any = None
        self.recipe: Recipe | None = None
        self.own: Any = None
        """vLLM's compiler for what the recipe does not compile."""
        self.pieces: list[Piece] = []
        self.unrecorded = Unrecorded((), "", logger.warning)

    def compute_hash(self, vllm_config: Any) -> str:
        """Part of the name of vLLM's cache folder: the recipe, the sources of its passes and of npucompose, torch, the
        machine. vLLM adds its own configuration, its environment and the model's sources."""
        self.vllm_config, self.recipe = vllm_config, recipe_of(vllm_config.additional_config)
        assert self.recipe is not None
        config, general = vllm_config.compilation_config, self.recipe.options.general
        self.own = EagerAdaptor() if general == "eager" else InductorStandaloneAdaptor(config.compile_cache_save_format)
        self.unrecorded = Unrecorded(self.recipe.sizes, self.recipe.others, logger.warning)
        return f"{self.recipe.key[:20]}{self.own.compute_hash(vllm_config)}"

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self.own.initialize_cache(cache_dir, disable_cache, prefix)
        if not disable_cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache_dir.removesuffix(prefix), CODE)

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: list[Any],
        compiler_config: dict[str, Any],
        compile_range: Any,
        key: str | None = None,
    ) -> tuple[Callable[..., Any] | None, Any | None]:
        """What vLLM calls for one piece and range of sizes, and the handle by which a later process has it loaded."""
        if self._is_own(compile_range):
            called, handle = self.own.compile(graph, example_inputs, compiler_config, compile_range, key)
            return self._saying(called), handle
        assert self.recipe is not None
        piece = self._piece(graph, example_inputs, compiler_config)
        said = compiler_config[current_platform.pass_key].said()
        return piece, None if key is None else (key, json.dumps({"code": piece.code, "said": said}))

    def load(
        self, handle: Any, graph: fx.GraphModule, example_inputs: list[Any], graph_index: int, compile_range: Any
    ) -> Callable[..., Any]:
        """What `compile` made in an earlier process: of what Inductor compiled the code; else, and where that is gone,
        the passes run again.

        vLLM's cache folder is that of this recipe and of these sources, so that no other handle comes.
        """
        if self._is_own(compile_range):
            return self._saying(self.own.load(handle, graph, example_inputs, graph_index, compile_range))
        known = json.loads(handle[1])
        if known["code"] is not None and (piece := self._restored(known, graph, example_inputs)) is not None:
            return piece
        before = counters["inductor"]["fxgraph_cache_miss"]
        with pass_context(compile_range):
            piece = self._piece(graph, example_inputs, self._settings())
        if made := counters["inductor"]["fxgraph_cache_miss"] - before:
            logger.warning("Piece %d: %d graphs were not in Inductor's cache and are compiled.", graph_index, made)
        return piece

    def _restored(self, known: Mapping[str, Any], graph: fx.GraphModule, example_inputs: list[Any]) -> Piece | None:
        assert self.recipe is not None
        settings = self.vllm_config.compilation_config.inductor_compile_config
        piece = restored(self.recipe, graph, example_inputs, settings, known["code"], self.unrecorded, self._memory)
        if piece is not None:
            for line in known["said"]:
                logger.info("When it was compiled: %s", line)
            self.pieces.append(piece)
        return piece

    @property
    def _memory(self) -> Any:
        """What all pieces compute in between in."""
        return self.pieces[0].backend.common_memory if self.pieces else None

    def _is_own(self, compile_range: Any) -> bool:
        assert self.recipe is not None
        return self.recipe.each_size_alone and not compile_range.is_single_size()

    def _piece(self, graph: fx.GraphModule, example_inputs: list[Any], settings: dict[str, Any]) -> Piece:
        assert self.recipe is not None
        manager = settings[current_platform.pass_key]
        piece = compiled(self.recipe, graph, example_inputs, settings, manager, self.unrecorded, self._memory)
        for compilation in piece.backend.compilations:
            say(compilation.passes)
            if compilation.decision is not None:
                logger.info("Streams: %s", compilation.decision.why)
        self.pieces.append(piece)
        return piece

    def _settings(self) -> dict[str, Any]:
        """Inductor's as vLLM hands them to `compile` (VllmBackend.configure_post_pass), which it does not to `load`."""
        settings = copy.deepcopy(self.vllm_config.compilation_config.inductor_compile_config)
        manager = RecipePassManager()
        manager.configure(self.vllm_config)
        if current_platform.pass_key in settings:
            manager.add(settings[current_platform.pass_key])
        return {
            **settings,
            FIRST: VllmIRInplaceFunctionalizationPass(self.vllm_config),
            current_platform.pass_key: manager,
            NOT_IN_KEYS: [*getattr(inductor_config, NOT_IN_KEYS), FIRST],
        }

    def _saying(self, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.unrecorded.came(next((arg for arg in args if type(arg) is int), 0))
            return called(*args)

        return call
