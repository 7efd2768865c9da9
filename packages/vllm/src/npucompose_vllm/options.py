"""`extensions.vllm`: what a recipe says to vLLM alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from npucompose.schema.sections import Section
from npucompose.table.options import option

General = Literal["inductor", "eager"]
Graphs = Literal["full", "piecewise"]


@frozen(kw_only=True)
class VllmOptions(Section):
    """How vLLM compiles a model with this recipe."""

    name: ClassVar[str] = "vllm"
    sizes: tuple[int, ...] = option(
        factory=lambda: (1, 2, 4, 8), doc="tokens of a step that are compiled and recorded, each for itself", ge=1
    )
    general: General = option("inductor", "what runs a step of any other number of tokens: vLLM's Inductor, or eager")
    graphs: Graphs = option(
        "full",
        "full: a size is one recording of the whole model; piecewise: one recording between each two attentions",
    )

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        return self.sizes
