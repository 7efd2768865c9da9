"""The stages, one file each. A stage asks the session and writes down facts; here they become a graph."""

from __future__ import annotations

from airflow_free.stage import StageGraph
from npucompose.experiment.stages.ablation import Ablation
from npucompose.experiment.stages.benchmark import Benchmark
from npucompose.experiment.stages.capture import Capture
from npucompose.experiment.stages.compile import Compile
from npucompose.experiment.stages.modes import Modes
from npucompose.experiment.stages.replay import Replay
from npucompose.experiment.stages.sequence import Sequence

STAGES = StageGraph.from_stages([Compile(), Capture(), Replay(), Benchmark(), Ablation(), Modes(), Sequence()])
