"""Who beside the run directory is told what came out of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from npucompose.schema.options import option

TrackerName = Literal["none", "mlflow", "tensorboard"]

PACKAGES: Mapping[str, str] = {"mlflow": "mlflow", "tensorboard": "tensorboard"}
"""{tracker: what has to be importable, and the extra of the same name that brings it}."""


@frozen(kw_only=True)
class Tracker:
    """Told when a run is finished, from a process of its own; decides no result and can lose none."""

    name: TrackerName = option("none", "the choice of conf/tracker this is", choices=("none", "mlflow", "tensorboard"))
    place: str | None = option(
        None, "mlflow: a tracking URI; tensorboard: a folder; null: in the store; only the command line can say so"
    )
    experiment: str = option("npucompose", "what the runs are filed under there")
