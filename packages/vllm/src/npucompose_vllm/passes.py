"""vLLM's pass manager, and the recipe's passes in it.

Inductor calls the manager with a functional graph; the recipe's passes run after vLLM's. A recorded graph is lowered by
vLLM's passes first: a stream plan is made of the graph that runs, in-place operators and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from vllm.compilation.passes.inductor_pass import InductorPass  # pyright: ignore[reportMissingImports]
from vllm.compilation.passes.pass_manager import PostGradPassManager  # pyright: ignore[reportMissingImports]
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from npucompose.compose.engine import materialize
from npucompose.results.graphs import PassRecord
from npucompose.streams import strip
from npucompose_vllm.recipe import Recipe, recipe_of

logger = init_logger("vllm.npucompose")


def say(records: Sequence[PassRecord]) -> str | None:
    """In vLLM's log: how many places each pass has changed in one piece; what was said."""
    if not records:
        return None
    line = f"Passes of a piece, places changed: {', '.join(f'{one.name} {one.matches}' for one in records)}."
    logger.info("%s", line)
    return line


class RecipePasses(InductorPass):
    """The passes of a recipe as one of vLLM's; a stream plan is validated, and stripped where Inductor compiles."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        made = materialize(recipe.checked)
        self.pipelines = (made.pre, made.post)
        self.said: list[str] = []
        """Of the graphs that they have seen."""

    def __call__(self, graph: fx.Graph) -> None:
        graph_module = graph.owning_module
        assert graph_module is not None
        values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
        line = say([record for pipeline in self.pipelines for record in pipeline(graph_module, values)])
        if line is not None:
            self.said.append(line)
        strip(graph)

    def uuid(self) -> str:
        """Of the sources and options of the passes: an edited pass is another pass."""
        return self.recipe.passes_key


class LeftToInductor(InductorPass):
    """In place of vLLM's FixFunctionalizationPass, which names operators that only a GPU's vLLM has (0.32: it raises
    where it meets an in-place operator): Inductor puts them in place by itself, or `pieces.put_in_place` does."""

    def __call__(self, graph: fx.Graph) -> None: ...


class BeforeTheLast(InductorPass):
    """vLLM's last step, and the recipe's passes before it: by then vLLM has lowered its own operators, so that a
    pattern of ATen's finds what they are made of."""

    def __init__(self, passes: RecipePasses, last: InductorPass) -> None:
        self.passes, self.last = passes, last

    def __call__(self, graph: fx.Graph) -> None:
        self.passes(graph)
        self.last(graph)

    def uuid(self) -> str:
        return InductorPass.hash_dict({"passes": self.passes.uuid(), "last": self.last.uuid()})


class RecipePassManager(PostGradPassManager):
    """vLLM's own, with the passes of the recipe after vLLM's."""

    def configure(self, config: Any) -> None:
        super().configure(config)
        if current_platform.is_cpu():
            self.fix_functionalization = LeftToInductor()
        recipe = recipe_of(config.additional_config)
        if recipe is not None and recipe.checked.passes:
            self.fix_functionalization = BeforeTheLast(RecipePasses(recipe), self.fix_functionalization)

    def said(self) -> list[str]:
        """What the recipe's passes have said of the graphs so far, and then forgotten."""
        last = self.fix_functionalization
        if not isinstance(last, BeforeTheLast):
            return []
        found, last.passes.said = last.passes.said, []
        return found

    def lower(self, graph: fx.Graph) -> None:
        """What vLLM's own passes make of a graph that is recorded as it is."""
        last = self.fix_functionalization
        if isinstance(last, BeforeTheLast):
            self.fix_functionalization = last.last
        try:
            self(graph)
        finally:
            self.fix_functionalization = last
