"""The stages, one file each. A stage asks the session and writes down facts; here they become a graph."""

from __future__ import annotations

from airflow_free.graph import StageGraph
from airflow_free.stages.ablation import Ablation
from airflow_free.stages.benchmark import Benchmark
from airflow_free.stages.capture import Capture
from airflow_free.stages.compile import Compile
from airflow_free.stages.modes import Modes
from airflow_free.stages.replay import Replay
from airflow_free.stages.sequence import Sequence

STAGES = StageGraph.of([Compile(), Capture(), Replay(), Benchmark(), Ablation(), Modes(), Sequence()])
