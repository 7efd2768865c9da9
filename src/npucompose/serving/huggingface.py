"""The CompileConfig that transformers compiles a decoder's steps with, over a backend of ours.

Imports transformers. Read for 4.56 to 5.23 (`generation/configuration_utils.py`, `generation/utils.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import CompileConfig  # pyright: ignore[reportMissingImports]

from npucompose.compose.engine import Materialised
from npucompose.results.effective import Effective
from npucompose.results.measured import CallStatistics

PASSED_ON = ("fullgraph", "dynamic", "backend", "mode", "options")
"""What torch.compile is called with."""


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

    def to_dict(self) -> dict[str, Any]:
        """Keywords of torch.compile. transformers' own copies them, and a copy of a backend knows no recording."""
        return {name: getattr(self, name) for name in PASSED_ON}

    def __deepcopy__(self, memo: dict[int, Any]) -> RecipeCompileConfig:
        return self
