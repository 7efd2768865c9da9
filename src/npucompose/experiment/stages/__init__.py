"""The stages, one file each. A stage asks the session and writes down facts; here they become a graph.

No stage compiles, times or compares by itself: that is the session's and `measure`'s. torch is imported inside `run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_free.stage import Stage, StageGraph
from npucompose.experiment.stages.ablation import AblationStage
from npucompose.experiment.stages.benchmark import BenchmarkStage
from npucompose.experiment.stages.capture import CaptureStage
from npucompose.experiment.stages.compile import CompileStage
from npucompose.experiment.stages.generate import GenerateStage
from npucompose.experiment.stages.legality import LegalityStage
from npucompose.experiment.stages.modes import ModesStage
from npucompose.experiment.stages.padding import PaddingStage
from npucompose.experiment.stages.replay import ReplayStage
from npucompose.experiment.stages.sequence import SequenceStage
from npucompose.registry import Registry

BUILT_IN: tuple[type[Stage[Any]], ...] = (
    LegalityStage,
    CompileStage,
    CaptureStage,
    ReplayStage,
    PaddingStage,
    BenchmarkStage,
    AblationStage,
    ModesStage,
    SequenceStage,
    GenerateStage,
)
STAGES: Registry[type[Stage[Any]]] = Registry(
    kind="stage",
    base=Stage,
    group="npucompose.stages",
    built_in=tuple((stage.name, f"{stage.__module__}:{stage.__name__}") for stage in BUILT_IN),
)


def graph_of(wanted: Iterable[str]) -> StageGraph:
    """The built-in stages in running order; where another one is wanted, those of installed packages after them."""
    known = {stage.name: stage for stage in BUILT_IN}
    if beyond := [name for name in wanted if name not in known]:
        known |= STAGES.every() | {name: STAGES.get(name) for name in beyond if name in STAGES}
    return StageGraph.from_stages(stage() for stage in known.values())
