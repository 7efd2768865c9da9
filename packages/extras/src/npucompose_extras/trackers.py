"""MLflow, TensorBoard and Weights & Biases, each given one finished run after another; imported when asked for."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from airflow_free.sqlite_files import why_not_written
from npucompose.errors import ConfigError
from npucompose.experiment.tracking import RunTracker, TrackerOrder
from npucompose.report.json import Tracked
from npucompose.results.record import EXIT_STATUS

T = TypeVar("T")
HELD = frozenset(status for status, exit_status in EXIT_STATUS.items() if exit_status == 0)
"""Statuses of runs that succeeded."""
DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
LONGEST = 5000
"""Characters of a parameter or a tag; MLflow refuses more than 6000."""
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
KEY = "npucompose.key"
FOLDER = "tensorboard"
SHORT = 16
"""Characters of a key that name a run's folder."""
WANDB_INIT_S = 30.0
"""A server that does not answer for so long is not there; below `tracking.TIME_LIMIT_S`."""


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
        if not order.place and (why := why_not_written(store / DATABASE)):
            raise ConfigError(f"tracker=mlflow: {store / DATABASE} is not used: {why}.")
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
            client.set_terminated(made, "FINISHED" if run.tags["npucompose.status"] in HELD else "FAILED")

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


class WeightsAndBiases(RunTracker):
    """Figures as the summary, samples as the history, configuration and tags as the config, the report as files.

    `offline` below the store, for `wandb sync`, unless `tracker.place` is a server's address. Of this machine it gets
    what the report says: no console, no code, no git, no machine statistics.

    API: https://docs.wandb.ai/ref/python/sdk/functions/init, https://docs.wandb.ai/ref/python/sdk/classes/run
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str | None] = "wandb"

    @classmethod
    def reporter(cls, order: TrackerOrder) -> Callable[[Tracked, bool], None]:
        """A run for each, in the project that is the experiment; a folder `wandb` in the store has what is not sent."""
        store = Path(order.store)
        place = store / cls.name
        place.mkdir(parents=True, exist_ok=True)  # where it cannot write, W&B takes the folder of temporary files
        for variable, value in _wandb_variables(place).items():
            os.environ.setdefault(variable, value)
        wandb: Any = importlib.import_module("wandb")
        settings = wandb.Settings(**_wandb_settings(order.place))

        def report(run: Tracked, reused: bool) -> None:
            short = run.key[:SHORT] or "without-a-key"
            if reused and any(place.glob(f"*run-*-{short}-*")):
                return
            opened = wandb.init(
                project=order.experiment, name=run.name, id=f"{short}-{time.time_ns():x}", dir=str(store),
                config={**{name: _plain(text) for name, text in run.params.items()}, **run.tags},
                tags=[run.tags["npucompose.status"]], settings=settings,
            )  # fmt: skip
            for step, row in enumerate(_rounds(run.samples)):
                opened.log(row, step=step)
            opened.summary.update({name.replace(".", "/"): value for name, value in run.metrics.items()})
            for path in run.files:
                opened.save(shutil.copy(path, opened.dir), base_path=opened.dir, policy="now")
            opened.finish(exit_code=int(run.tags["npucompose.status"] not in HELD))

        return report


def _wandb_variables(place: Path) -> dict[str, str]:
    """What W&B reads from the environment only."""
    return {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CACHE_DIR": str(place / "cache"),
        "WANDB_DATA_DIR": str(place / "data"),
    }


def _wandb_settings(address: str | None) -> dict[str, Any]:
    where = {"mode": "offline"} if address is None else {"mode": "online", "base_url": address}
    nothing_else = {
        "console": "off", "disable_code": True, "disable_git": True, "save_code": False, "x_disable_machine_info": True,
        "x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False,
    }  # fmt: skip
    return {**where, **nothing_else, "silent": True, "reinit": "create_new", "init_timeout": WANDB_INIT_S}


def _rounds(samples: Mapping[str, Sequence[float]]) -> Iterator[dict[str, float]]:
    """`{"samples/eager_us": 990.1, "samples/replay_us": 517.0}` for each round."""
    for step in range(max(map(len, samples.values()), default=0)):
        yield {f"samples/{name}_us": values[step] for name, values in samples.items() if step < len(values)}


def _plain(text: str) -> Any:
    """A parameter as what it was before it was written as JSON, so that numbers sort as numbers; a text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
