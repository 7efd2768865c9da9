"""The stage `replay`: the comparison with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from airflow_free.stage import Facts, Stage
from npucompose.experiment.stages.facts import comparison_account
from npucompose.results.record import ReplayFacts
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session


class ReplayStage(Stage["Session"]):
    """Eager and compiled side by side on fresh inputs of every step, from one state; then the detached handle."""

    name: ClassVar[str] = "replay"
    needs: ClassVar[tuple[str, ...]] = ("capture",)
    reads: ClassVar[tuple[str, ...]] = ("benchmark.threads",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.compose.comparison import every_step
        from npucompose.targets.vendor_compiled import device_texts

        steps = every_step(live, progress)
        replay = ReplayFacts(first_us=steps.first_us, replays=len(steps.results), detached_ended=steps.ended)
        return {
            "replay": facts_of(replay),
            "texts": dict(device_texts(live.materialised.backend)),
            **comparison_account(live, steps.results),
        }
