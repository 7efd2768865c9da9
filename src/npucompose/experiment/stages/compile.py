"""The stage `compile`: from `torch.compile` to a callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from airflow_free.stage import Facts, Stage
from npucompose.experiment.stages.facts import graphs_account, npu_facts, sinking_facts, stream_facts, timelines
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session


class CompileStage(Stage["Session"]):
    """Dynamo, AOTAutograd, passes and backend on the example inputs; a graph before and after the passes as text."""

    name: ClassVar[str] = "compile"
    reads: ClassVar[tuple[str, ...]] = (
        "mode", "shapes", "tiling", "passes", "streams", "adapt", "check", "compiler", "inductor", "target", "model",
        "scenario", "compile", "seed", "sinking", "benchmark.threads", "strict", "extensions?",
    )  # fmt: skip

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        graphs = live.compilations
        return {
            "times": facts_of(live.first_call.times),
            "streams": stream_facts(graphs),
            "recordings": live.materialised.backend.recordings(),
            **timelines(graphs),
            **graphs_account(live),
            "npu": npu_facts(live),
            "sinking": sinking_facts(live),
        }
