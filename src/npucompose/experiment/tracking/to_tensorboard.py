"""TensorBoard: figures as scalars, samples as a series and a histogram, configuration as hyperparameters.

API: https://pytorch.org/docs/stable/tensorboard.html
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npucompose.report.json import Tracked

if TYPE_CHECKING:
    from npucompose.experiment.tracking.process import Order

FOLDER = "tensorboard"
SHORT = 16
"""Characters of a key that name a run's folder."""


def reporter(order: Order) -> Callable[[Tracked, bool], None]:
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
            writer.add_text("run", "\n\n".join([run.name, *(f"{name}: {value}" for name, value in run.tags.items())]))
            for name, values in run.samples.items():
                for step, value in enumerate(values):
                    writer.add_scalar(f"samples/{name}_us", value, step)
                writer.add_histogram(f"latency/{name}_us", numpy.asarray(values))
            writer.add_hparams(dict(run.params), dict(run.metrics), run_name=".")

    return report
