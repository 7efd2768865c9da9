"""The CompileConfig that transformers compiles a decoder's steps with, over a backend of ours.

Imports transformers. Read for 4.56 to 5.23 (`generation/configuration_utils.py`, `generation/utils.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import CompileConfig, GenerationConfig  # pyright: ignore[reportMissingImports]

from npucompose.compose.engine import Materialised
from npucompose.results.effective import Effective
from npucompose.results.measured import CallStatistics

PASSED_ON = ("fullgraph", "dynamic", "backend", "mode", "options")
"""What torch.compile is called with."""
COMPILED = ("greedy_search", "sample")
"""Ways to generate whose steps transformers compiles: generation/utils.py, `get_compiled_call` in `_sample`."""


@dataclass(eq=False, init=False)
class RecipeCompileConfig(CompileConfig):
    """One for all calls of `generate`: copies of a GenerationConfig hold this one, and what it has compiled.

    transformers compiles a model anew where the configuration is another than the last, so equality is identity.
    """

    materialised: Materialised

    def __init__(self, materialised: Materialised) -> None:
        keywords = dict(materialised.compile_keywords)
        super().__init__(backend=materialised.backend, mode="default", **keywords)
        self.materialised = materialised
        self._compile_all_devices = True  # the target says on which

    @property
    def statistics(self) -> CallStatistics:
        """How the steps of all texts so far ran: replayed, recorded, in another's place, eagerly."""
        return self.materialised.backend.statistics

    @property
    def effective(self) -> tuple[Effective, ...]:
        """Requests that do not take effect as asked."""
        return (*self.materialised.effective, *self.materialised.backend.effective())

    def used_for(self, way: str) -> None:
        """A text is generated in this way: a warning, once, where transformers compiles nothing of it."""
        if way not in COMPILED:
            self.materialised.backend.notices.warn(
                f"compile_config has no effect on {way.replace('_', ' ')}: transformers compiles the steps of greedy "
                "search and of sampling alone (num_beams=1, no assistant), so that this text is generated without the "
                "recipe."
            )

    def to_dict(self) -> dict[str, Any]:
        """Keywords of torch.compile. transformers' own copies them, and a copy of a backend knows no recording."""
        return {name: getattr(self, name) for name in PASSED_ON}

    def __deepcopy__(self, memo: dict[int, Any]) -> RecipeCompileConfig:
        return self


def _reporting(mode_of: Callable[..., Any]) -> Callable[..., Any]:
    """`GenerationConfig.get_generation_mode`, the one thing that `generate` asks its configuration for every text."""

    @functools.wraps(mode_of)
    def get_generation_mode(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode = mode_of(self, *args, **kwargs)
        if isinstance(self.compile_config, RecipeCompileConfig):
            self.compile_config.used_for(mode.value)
        return mode

    return get_generation_mode


GenerationConfig.get_generation_mode = _reporting(GenerationConfig.get_generation_mode)
