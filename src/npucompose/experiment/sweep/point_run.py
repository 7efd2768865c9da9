"""One point of a sweep that was begun: its folder, as Hydra would have made it, its run, its end in the ledger."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from attrs import field, frozen

from airflow_free.outcome import Outcome
from airflow_free.store import Store, write_atomically
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep.ledger import Entry
from npucompose.experiment.sweep.plan import Point
from npucompose.report import json as report_json
from npucompose.results.record import Figures
from npucompose.visible import visible

SUBFOLDER = ".hydra"


@frozen(kw_only=True)
class PointFolder:
    """A name below the sweep's folder; made when the point begins."""

    path: Path
    point: Point

    @staticmethod
    def of(sweep: Path, name: str, point: Point) -> PointFolder:
        """`sweep/name`; `sweep/name.2` and so on where another point has left a report in that (hydra.sweep.dir given
        on the command line again for another sweep). ConfigError for a name that leads out of the sweep's folder."""
        path = sweep / name
        if not path.resolve().is_relative_to(sweep.resolve()) or path.resolve() == sweep.resolve():
            raise ConfigError(f"hydra.sweep.subdir gives '{name}', which is no folder below the sweep's own.")
        number = 1
        while _is_of_another(path, point):
            number += 1
            path = sweep / f"{name}.{number}"
        return PointFolder(path=path, point=point)

    def make(self, job: Job) -> Path:
        """Make it, with `.hydra/` inside, and return the path."""
        import yaml

        inside = self.path / SUBFOLDER
        inside.mkdir(parents=True, exist_ok=True)
        texts = {"config.yaml": dict(job.composed.tree), "overrides.yaml": list(self.point.overrides)}
        for name, content in texts.items():
            write_atomically(inside / name, yaml.dump(content, Dumper=_dumper(), sort_keys=False, allow_unicode=True))
        return self.path

    def keep(self, job: Job) -> None:
        """Make it again where somebody, the job say, took it away."""
        if not (self.path / SUBFOLDER).is_dir():
            self.make(job)

    def take_back(self) -> None:
        """Nothing was run: remove what `make` made, and the log; folders that hold something else stay."""
        shutil.rmtree(self.path / SUBFOLDER, ignore_errors=True)
        (self.path / "run.log").unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


@frozen(kw_only=True)
class PointRun:
    """A point in its folder; `root` is the ledger's folder, from which run directories are named."""

    point: Point
    folder: PointFolder
    run: ActiveRun
    root: Path
    began: float = field(factory=time.monotonic)

    @staticmethod
    def begin(point: Point, folder: PointFolder, store: Store, root: Path) -> PointRun | Entry:
        """The run, or its end where its folder cannot be made."""
        assert point.job is not None
        try:
            run = ActiveRun.begin(point.job, folder.make(point.job), store)
        except OSError as error:
            return broken(point, f"its folder cannot be made: {error}.")
        return PointRun(point=point, folder=folder, run=run, root=root)

    @property
    def needs_worker(self) -> bool:
        return self.run.needs_worker

    def finish(self, outcome: Outcome | None) -> Entry:
        """Write the report; what a worker found illegal leaves no folder."""
        self.folder.keep(self.run.job)
        if outcome is not None and outcome.status == "config_error":
            self.folder.take_back()
            return Entry.illegal(self.point, outcome.problems or (outcome.error or "",))
        report = self.run.finish(outcome)
        return Entry(
            key=self.point.key,
            status=report.status,
            overrides=self.point.overrides,
            error=report.error,
            exit_signal=outcome.exit_signal if outcome is not None else None,
            run_dir=os.path.relpath(self.run.run_dir, self.root),
            seconds=outcome.seconds if outcome is not None else time.monotonic() - self.began,
            figures=Figures.from_report(report),
        )

    def broken(self, problem: str) -> Entry:
        return broken(self.point, f"what it left cannot be made a report: {problem}")


def broken(point: Point, words: str) -> Entry:
    return Entry(key=point.key, status="crashed", overrides=point.overrides, error=visible(words))


def _is_of_another(path: Path, point: Point) -> bool:
    if not (path / report_json.FILE_NAME).is_file():
        return False
    try:
        return report_json.load(path).key != point.key
    except ConfigError:
        return True


def _dumper() -> type:
    """libyaml's where PyYAML has it: the option tree is long, and a sweep has many of them."""
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)
