"""Runs a plan: what the ledger has is not run again; the executor that the plan names runs the others. What a point of
it leaves behind: its folder, as Hydra would have made it, its run, its end in the ledger.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import attrs
import yaml
from attrs import field, frozen

from airflow_free import ledger
from airflow_free.executors import Executor
from airflow_free.executors.local import LocalExecutor
from airflow_free.outcome import Outcome
from airflow_free.store import Store, write_atomically
from airflow_free.sweep import Listen, Loop, Source, SweepEvent, membership
from npucompose.errors import ConfigError, visible
from npucompose.experiment.job import Job
from npucompose.experiment.orchestrator import translate_errors
from npucompose.experiment.run import ActiveRun, forget
from npucompose.experiment.sweep.plan import Point, SweepPlan
from npucompose.report import json as report_json
from npucompose.results.record import EXIT_STATUS, MEASURED, Figures, Status
from npucompose.schema import sweep as choices
from npucompose.table.structure import structure

POINTS = "points.json"
RUN_AGAIN = ("failed", "crashed", "timeout", "memory_limit")
"""What retry=failed repeats."""
Options = TypeVar("Options")
Name = Callable[[Point], str]
"""What the folder of a point is called, below that of the sweep."""


def exit_status(entries: Sequence[PointEntry]) -> int:
    """3 if any failed, crashed or timed out, else 1 for a gate that did not hold, else 2 if any was illegal."""
    found = {EXIT_STATUS[entry.status] for entry in entries}
    return next((status for status in (3, 1, 2) if status in found), 0)


def run_sweep(
    plan: SweepPlan, folder: Path, name: Name, *, store: Store, ledger: PointLedger, listen: Listen
) -> dict[str, PointEntry]:
    """{key: end} of every point of the plan; points that are the same point run once.

    What is in the ledger with a report that is still there is kept, unless the plan asks for it again; illegal points
    go into the ledger first. Where all are run again, what the store has of them goes, too.
    """
    write_atomically(folder / POINTS, membership(plan.points))
    ledger.write(PointEntry.illegal(point) for point in plan.illegal)
    ends = kept_of(plan, ledger)
    once = {point.key: point for point in reversed(plan.points)}
    for key, entry in ends.items():
        listen(SweepEvent(kind="kept", point=once[key], entry=entry))
    left = {point.key: point for point in plan.points if point.key not in ends}
    if plan.again == "all":
        forget((point.job for point in left.values() if point.job is not None), store)
    folders = {point.key: folder_of(folder, name(point), point) for point in left.values()}
    with executor_of(plan.executor, folder) as executor:
        begin = partial(PointRun.begin, path_of=lambda point: folders[point.key], store=store, ledger=ledger)
        ends.update(Loop(executor, ledger, begin, listen).run(Source(left.values())))
    return ends


def kept_of(plan: SweepPlan, ledger: PointLedger) -> dict[str, PointEntry]:
    """{key: end} of the points that the plan does not run: of all that are run again, those that are illegal."""
    points = plan.illegal if plan.again == "all" else plan.points
    return kept(points, ledger, retry_failed=plan.again == "failed")


def kept(points: Sequence[Point], ledger: PointLedger, *, retry_failed: bool) -> dict[str, PointEntry]:
    """{key: end} of those that are not run again.

    Illegal is not kept where only a worker could see it: what it saw, a missing package say, may have changed.
    """
    found = ledger.ends(list(dict.fromkeys(point.key for point in points)))
    again = RUN_AGAIN if retry_failed else ()
    refused = {point.key for point in points if point.job is None}
    return {
        key: entry
        for key, entry in found.items()
        if entry.status not in again and (entry.status != "illegal" or key in refused) and _is_there(entry, ledger)
    }


def _is_there(entry: PointEntry, ledger: PointLedger) -> bool:
    """Its report was not thrown away; without one a point counts as not run (what the store has makes that quick)."""
    return entry.run_dir is None or (ledger.path.parent / entry.run_dir / "report.json").is_file()


def executor_of(options: choices.Executor, folder: Path) -> Executor:
    """What runs the points of a sweep whose folder is `folder`."""
    if isinstance(options, choices.Local):
        return LocalExecutor(folder, jobs=options.jobs, devices=options.devices)
    with translate_errors():
        if isinstance(options, choices.Ray):
            from airflow_free.executors.ray import RayExecutor, RayOptions

            return RayExecutor(_as(RayOptions, options))
        from airflow_free.executors.slurm import SlurmExecutor, SlurmOptions

        return SlurmExecutor(_as(SlurmOptions, options), folder)


def _as(kind: type[Options], options: Any) -> Options:
    """Our options as those of the orchestrator, which have the same names."""
    return kind(**{f.name: getattr(options, f.name) for f in attrs.fields(kind)})  # pyright: ignore[reportArgumentType]


TIMED = ("p50_us", "pool_bytes", "peak_rss_bytes", "compile_s")


@frozen(kw_only=True)
class PointEntry(ledger.Entry):
    status: Status
    figures: Figures = field(factory=Figures)

    @staticmethod
    def illegal(point: Point, problems: Sequence[str] = ()) -> PointEntry:
        error = "; ".join(problems or point.problems)
        return PointEntry(key=point.key, status="illegal", overrides=point.overrides, error=error)


class PointLedger(ledger.Ledger[PointEntry]):
    entry: ClassVar[type[Any]] = PointEntry
    figures: ClassVar[type[Any]] = Figures
    statuses: ClassVar[tuple[str, ...]] = get_args(Status)
    sortable: ClassVar[tuple[str, ...]] = (*MEASURED, "ended", "status")

    @staticmethod
    def structure(kind: type[Any], tree: Mapping[str, object]) -> Any:
        return structure(kind, tree)

    def timed(self, statuses: Sequence[Status]) -> Iterator[tuple[Any, ...]]:
        """(key, overrides, (model, target, and TIMED)) of every point of these statuses that was timed."""
        return self.rows(("model", "target"), TIMED, statuses)


SUBFOLDER = ".hydra"


def folder_of(sweep: Path, name: str, point: Point) -> Path:
    """`sweep/name`; `sweep/name.2` and so on where another point has left a report in that (hydra.sweep.dir given
    on the command line again for another sweep). ConfigError for a name that leads out of the sweep's folder."""
    path = sweep / name
    if not path.resolve().is_relative_to(sweep.resolve()) or path.resolve() == sweep.resolve():
        raise ConfigError(f"hydra.sweep.subdir gives '{name}', which is no folder below the sweep's own.")
    number = 1
    while _is_of_another(path, point):
        number += 1
        path = sweep / f"{name}.{number}"
    return path


def make_folder(path: Path, point: Point, job: Job) -> None:
    """The folder of a point, with `.hydra/` inside."""
    inside = path / SUBFOLDER
    inside.mkdir(parents=True, exist_ok=True)
    texts = {"config.yaml": dict(job.composed.tree), "overrides.yaml": list(point.overrides)}
    for name, content in texts.items():
        write_atomically(inside / name, yaml.dump(content, Dumper=DUMPER, sort_keys=False, allow_unicode=True))


def take_back_folder(path: Path) -> None:
    """Nothing was run: remove what `make_folder` made, and the log; folders that hold something else stay."""
    shutil.rmtree(path / SUBFOLDER, ignore_errors=True)
    (path / "run.log").unlink(missing_ok=True)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()


@frozen(kw_only=True)
class PointRun:
    """A point in its folder; `root` is the ledger's folder, from which run directories are named."""

    point: Point
    run: ActiveRun
    root: Path
    began: float = field(factory=time.monotonic)

    @staticmethod
    def begin(
        point: Point, path_of: Callable[[Point], Path], store: Store, ledger: PointLedger
    ) -> PointRun | PointEntry:
        """The run, or its end where its folder cannot be made."""
        assert point.job is not None
        path = path_of(point)
        try:
            make_folder(path, point, point.job)
            run = ActiveRun.begin(point.job, path, store)
        except OSError as error:
            return broken(point, f"its folder cannot be made: {error}.")
        return PointRun(point=point, run=run, root=ledger.path.parent)

    @property
    def needs_worker(self) -> bool:
        return self.run.needs_worker

    def finish(self, outcome: Outcome | None) -> PointEntry:
        """Write the report, in a folder made again where somebody, the job say, took it away; what a worker found
        illegal leaves no folder."""
        if not (self.run.run_dir / SUBFOLDER).is_dir():
            make_folder(self.run.run_dir, self.point, self.run.job)
        if outcome is not None and outcome.status == "config_error":
            take_back_folder(self.run.run_dir)
            return PointEntry.illegal(self.point, outcome.problems or (outcome.error or "",))
        report = self.run.finish(outcome)
        return PointEntry(
            key=self.point.key,
            status=report.status,
            overrides=self.point.overrides,
            error=report.error,
            exit_signal=outcome.exit_signal if outcome is not None else None,
            run_dir=os.path.relpath(self.run.run_dir, self.root),
            seconds=outcome.seconds if outcome is not None else time.monotonic() - self.began,
            figures=Figures.from_report(report),
        )

    def broken(self, problem: str) -> PointEntry:
        return broken(self.point, f"what it left cannot be made a report: {problem}")


def broken(point: Point, words: str) -> PointEntry:
    return PointEntry(key=point.key, status="crashed", overrides=point.overrides, error=visible(words))


def _is_of_another(path: Path, point: Point) -> bool:
    if not (path / report_json.FILE_NAME).is_file():
        return False
    try:
        return report_json.load(path).key != point.key
    except ConfigError:
        return True


DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's where PyYAML has it: the option tree is long, and a sweep has many of them."""
