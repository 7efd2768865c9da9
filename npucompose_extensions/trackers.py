"""MLflow and TensorBoard, each told of one finished run after another. Imports neither before it is asked for."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from npucompose.experiment.tracking import RunTracker, TrackerOrder
from npucompose.report.json import Tracked

T = TypeVar("T")
DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
LONGEST = 5000
"""Characters of a parameter or a tag; MLflow refuses more than 6000."""
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
KEY = "npucompose.key"
FOLDER = "tensorboard"
SHORT = 16
"""Characters of a key that name a run's folder."""


class Mlflow(RunTracker):
    """Parameters, metrics, samples as a series, tags, and the report as an artifact. SQLite unless told otherwise.

    API: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str | None] = "mlflow"

    @classmethod
    def reporter(cls, order: TrackerOrder) -> Callable[[Tracked, bool], None]:
        """Opens the database, and makes the experiment where there is none."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow: Any = importlib.import_module("mlflow")
        entities: Any = importlib.import_module("mlflow.entities")
        store = Path(order.store)
        store.mkdir(parents=True, exist_ok=True)
        client = mlflow.MlflowClient(tracking_uri=order.place or f"sqlite:///{store / DATABASE}")
        known = client.get_experiment_by_name(order.experiment)
        artifacts = None if order.place else (store / ARTIFACTS / order.experiment).as_uri()
        experiment = known.experiment_id if known else client.create_experiment(order.experiment, artifacts)

        def report(run: Tracked, reused: bool) -> None:
            if reused and client.search_runs([experiment], f"tags.`{KEY}` = '{run.key}'", max_results=1):
                return
            tags = {name: value[:LONGEST] for name, value in run.tags.items()}
            made = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
            now = int(time.time() * 1000)
            params = [entities.Param(name, value[:LONGEST]) for name, value in run.params.items()]
            for some in _portions(params, PARAMS_AT_ONCE):
                client.log_batch(made, params=some)
            metrics = [entities.Metric(name, value, now, 0) for name, value in run.metrics.items()]
            metrics += [
                entities.Metric(f"samples.{name}_us", value, now, step)
                for name, values in run.samples.items()
                for step, value in enumerate(values)
            ]
            for some in _portions(metrics, METRICS_AT_ONCE):
                client.log_batch(made, metrics=some)
            for path in run.files:
                client.log_artifact(made, str(path))
            client.set_terminated(made, "FINISHED" if run.tags["npucompose.status"] == "ok" else "FAILED")

        return report


def _portions(items: Sequence[T], number: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, number)):
        yield some


class TensorBoard(RunTracker):
    """Figures as scalars, samples as a series and a histogram, configuration as hyperparameters.

    API: https://pytorch.org/docs/stable/tensorboard.html
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str | None] = "tensorboard"

    @classmethod
    def reporter(cls, order: TrackerOrder) -> Callable[[Tracked, bool], None]:
        """A folder for each run, below that of the experiment."""
        writers: Any = importlib.import_module("torch.utils.tensorboard")
        numpy: Any = importlib.import_module("numpy")
        root = Path(order.place) if order.place else Path(order.store) / FOLDER
        folder = root / order.experiment

        def report(run: Tracked, reused: bool) -> None:
            place = folder / (run.key[:SHORT] or "without-a-key")
            if reused and place.is_dir():
                return
            with writers.SummaryWriter(str(place)) as writer:
                lines = [run.name, *(f"{name}: {value}" for name, value in run.tags.items())]
                writer.add_text("run", "\n\n".join(lines))
                for name, values in run.samples.items():
                    for step, value in enumerate(values):
                        writer.add_scalar(f"samples/{name}_us", value, step)
                    writer.add_histogram(f"latency/{name}_us", numpy.asarray(values))
                writer.add_hparams(dict(run.params), dict(run.metrics), run_name=".")

        return report
