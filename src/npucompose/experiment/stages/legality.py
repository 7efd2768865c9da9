"""The stage `legality`: whether the model's call would be captured as an NPU graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from airflow_free.stage import Facts, Stage
from npucompose.errors import ConfigError, listed
from npucompose.table.modes import MODES, modes_that
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session


def check(mode: str, stages: Sequence[str]) -> None:
    """ConfigError where the mode captures nothing."""
    if LegalityStage.name in stages and not MODES.get(mode).captures:
        raise ConfigError(f"the stage legality: mode={mode} captures nothing; {listed(modes_that('captures'))} do.")


class LegalityStage(Stage["Session"]):
    """One call under the simulated capture, and the model's graphs; see docs/capture.md."""

    name: ClassVar[str] = "legality"
    reads: ClassVar[tuple[str, ...]] = (
        "mode", "shapes", "tiling", "passes", "streams", "adapt", "check", "compiler", "inductor", "target", "model",
        "scenario", "compile", "seed", "benchmark.threads", "strict", "extensions?",
    )  # fmt: skip

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        """A session of its own: the model is built on the simulated machine, and nothing has compiled it before."""
        from npucompose.npu.capture.session import capture_of

        facts, _, _ = capture_of(type(live)(live.checked))
        return {"legality": facts_of(facts)}
