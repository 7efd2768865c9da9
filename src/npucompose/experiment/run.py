"""Runs one experiment: its worker, its report. The parent waits; only the worker loads torch.

A finished experiment is recognised by its keys alone, in the parent, and runs nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from airflow_free.executors import RemoteTask, remote_task
from airflow_free.forkserver import WorkerTask
from airflow_free.keys import digest
from airflow_free.outcome import Outcome
from airflow_free.pool import run_in_worker
from airflow_free.stage import Event, Finished, Notify, Runner, StageFailed, ignore
from airflow_free.store import Store, write_atomically
from npucompose import activity, private
from npucompose.compose.tree import Composed
from npucompose.errors import CompileError, ConfigError, NpuComposeError, RejectedError
from npucompose.experiment.assemble import assembled
from npucompose.experiment.job import LOG, Job, set_up_worker, worker_task
from npucompose.experiment.lock import Locked
from npucompose.experiment.orchestrator import remote_environment, store_at
from npucompose.experiment.stages.benchmark import PROFILE
from npucompose.machine import thread_settings
from npucompose.report import html as report_html
from npucompose.report import json as report_json
from npucompose.report.json import trace_text
from npucompose.results.graphs import GraphDrawing
from npucompose.results.record import Report
from npucompose.results.streams import Timeline
from npucompose.table.structure import facts_of, of_facts

if TYPE_CHECKING:
    from npucompose.compose.session import Session

ENTRY, REMOTE_ENTRY = "npucompose.experiment.run:work", "npucompose.experiment.run:remote_work"
LOADED = (
    "npucompose.experiment.run", "npucompose.experiment.stages", "npucompose.compose.session",
    "npucompose.measure.environment", "npucompose.measure.numerics", "npucompose.measure.timing",
    "npucompose.vendor.inductor_source:installed", "npucompose.npu.static_graph.operators:shipped_table",
)  # fmt: skip
"""What every job needs beside what its target does; behind a colon, a function whose result is read once and kept."""
FILES = "torchair"
"""Folder of the run directory for what the vendor's compiler writes."""
COMPILED = "torchair"
"""The folder of compiled graphs in the cache."""
LOCKED = (0, 1)
"""Exit statuses of a run that went to its end: it leaves a recipe.lock.yaml."""
MOST_DIFFERENCES = 5


def run_experiment(job: Job, run_dir: Path, *, store: Store, notify: Notify = ignore) -> Report:
    """Run what has no record, in a worker; write report.json, recipe.lock.yaml and graphs/, and return the report.

    Raises ConfigError when only the worker could see that the configuration is illegal (a plan that finds no node, a
    model factory that fails): then nothing was measured, and no record and no report is written.
    """
    run = ActiveRun.begin(job, run_dir, store)
    return run.finish(run_in_worker(run.task, notify) if run.needs_worker else None)


@frozen(kw_only=True)
class ActiveRun:
    """A job about to run in a folder: what the store has of it already, and how it is finished."""

    job: Job
    run_dir: Path
    place: Path
    """Where that is, links followed."""
    store: Store
    finished: tuple[Finished, ...]

    @staticmethod
    def begin(job: Job, run_dir: Path, store: Store) -> ActiveRun:
        finished = _from_store(job, store)
        return ActiveRun(job=job, run_dir=run_dir, place=run_dir.resolve(), store=store, finished=finished)

    @property
    def needs_worker(self) -> bool:
        return len(self.finished) < len(self.job.order) and not _ended_early(self.finished)

    @property
    def payload(self) -> dict[str, Any]:
        """What `work` is called with."""
        return {
            "tree": dict(self.job.composed.tree),
            "provenance": dict(self.job.composed.provenance),
            "store": str(self.store.root.resolve()),
            "run_dir": self.run_dir.name,
            "files": str(self.files.resolve()),
        }

    @property
    def files(self) -> Path:
        return self.run_dir / FILES

    @property
    def loaded(self) -> tuple[str, ...]:
        return (*self.job.checked.target.loaded, *LOADED)

    @property
    def task(self) -> WorkerTask:
        """What is left of it, for a worker of this machine."""
        return worker_task(self.job.checked, ENTRY, self.payload, self.run_dir / LOG)

    @property
    def remote_task(self) -> RemoteTask:
        """The same for another machine; the context of its key is compared there."""
        context = {part: dict(values) for part, values in self.job.ingredients.context.items()}
        return remote_task(
            attrs.evolve(
                self.task,
                entry=REMOTE_ENTRY,
                payload={**self.payload, "context": context},
                log_path=(self.run_dir / LOG).resolve(),
            ),
            self.store,
            [(f.stage, f.key) for f in self.finished],
            env={**thread_settings(), **self.job.checked.target.environment()},
            environment=f"{remote_environment.__module__}:{remote_environment.__name__}",
        )

    def finish(self, outcome: Outcome | None) -> Report:
        """Write the report and graphs/ and return the report; `outcome` is None when no worker was needed.

        Raises ConfigError where the worker found the configuration illegal, and writes nothing then.
        """
        if outcome is not None and outcome.status == "config_error":
            raise ConfigError(*(outcome.problems or (outcome.error or "",)))
        self._find_the_folder()
        finished = self.finished if outcome is None else _after_worker(self.job, self.store, self.finished)
        job = self.job
        report = assembled(job.checked, job.ingredients, job.order, finished, self.store, outcome)
        _write_graphs(self.run_dir, finished)
        timelines, drawings = _timelines(finished), _drawings(finished)
        if timelines:
            write_atomically(self.run_dir / "trace.json", trace_text(timelines))
        _bring_files(self.run_dir, finished, self.store)
        report_json.write(report, self.run_dir)
        report_html.write(report, self.run_dir, timelines, drawings)
        if report.exit_status in LOCKED:
            Locked.from_report(job.ingredients, report).write(self.run_dir)
        return report

    def _find_the_folder(self) -> None:
        """Somebody, the job say, may have taken it away or put another in its place."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NpuComposeError(f"the folder of the run cannot be made again: {error}.") from error
        if self.run_dir.resolve() != self.place:
            raise NpuComposeError(
                f"{self.run_dir} leads elsewhere now, to {self.run_dir.resolve()}: nothing was written."
            )


def forget(jobs: Iterable[Job], store: Store) -> None:
    """Take away what the store has of them: they run again, what two of them share once."""
    for job in jobs:
        for stage in job.order:
            store.forget(stage.name, job.keys[stage.name])


def _from_store(job: Job, store: Store) -> tuple[Finished, ...]:
    found = []
    for stage in job.order:
        record = store.read(stage.name, job.keys[stage.name])
        if record is not None and store.has_files(record.stage, record.key, written_files(record.facts)):
            found.append(Finished.from_record(record, reused=True))
    return tuple(found)


def _after_worker(job: Job, store: Store, before: Sequence[Finished]) -> tuple[Finished, ...]:
    """The records as they are now, those that were there before marked as reused."""
    known = {f.stage for f in before}
    return tuple(attrs.evolve(f, reused=f.stage in known) for f in _from_store(job, store))


def _ended_early(finished: Sequence[Finished]) -> bool:
    """A comparison that failed is a result: nothing after it is run, now or the next time."""
    return not all(map(_passed, finished))


def _passed(finished: Finished) -> bool:
    numerics = finished.facts.get("numerics")
    return numerics is None or bool(numerics["passed"])


def _write_graphs(run_dir: Path, finished: Sequence[Finished]) -> None:
    folder = run_dir / "graphs"
    for f in finished:
        drawn = {f"{name}.json": json.dumps(facts) for name, facts in f.facts.get("drawings", {}).items()}
        for name, text in {**f.facts.get("texts", {}), **drawn}.items():
            folder.mkdir(exist_ok=True)
            write_atomically(folder / name, text)


def _drawings(finished: Sequence[Finished]) -> dict[str, GraphDrawing]:
    """{graph: what is drawn of it}, by the last stage that says so: it knows of all graphs before."""
    found = next((f.facts["drawings"] for f in reversed(finished) if "drawings" in f.facts), {})
    return {name: of_facts(GraphDrawing, facts, where=f"drawings.{name}") for name, facts in found.items()}


def written_files(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What the vendor's compiler and a profiler had written into the run's folder when the stage was done."""
    vendor = (facts.get("npu") or {}).get("files", ())
    profile = ((facts.get("benchmark") or {}).get("profile") or {}).get("files", ())
    return (*(f"{FILES}/{name}" for name in vendor), *profile)


def _bring_files(run_dir: Path, finished: Sequence[Finished], store: Store) -> None:
    """The files of stages that were not run now; the others lie there already."""
    for f in finished:
        if f.reused and written_files(f.facts):
            store.bring_files(f.stage, f.key, run_dir)


def _timelines(finished: Sequence[Finished]) -> list[tuple[str, Timeline]]:
    """(name of a graph, when each kernel ran) of every stage that has such: predicted, measured, on one stream."""
    names = ("timelines", "one_stream_timelines")
    lines = [one for f in finished for name in names for one in f.facts.get(name, {}).items()]
    found = [(name, of_facts(Timeline, line, where=f"timelines.{name}")) for name, line in lines]
    return sorted(found, key=lambda one: one[0])


def work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side: the same job again, from the composed tree, and its stages up to a failed comparison."""
    from npucompose.compose.session import Session
    from npucompose.measure.environment import environment
    from npucompose.targets.base import Folders

    set_up_worker(payload)
    job = Job.from_composed(Composed(tree=payload["tree"], provenance=payload["provenance"]))
    store, files = store_at(payload["store"]), Path(payload["files"])
    activity.listen(lambda words: notify(Event(kind="progress", text=words)))
    asked = job.checked.experiment
    if asked.inductor.replays or not asked.mode.spec.fuses:
        job.checked.target.start_build(asked.mode.name)
    session = Session(job.checked, Folders(files=files, cache=_cache(job, store), profile=files.parent / PROFILE))
    session.set_up()
    runner = Runner(
        store=store,
        notify=notify,
        environment=facts_of(environment(job.checked.target.identity())),
        provenance={"run": payload["run_dir"]},
    )
    done: list[Finished] = []
    for stage in job.order:
        try:
            done += runner.run((stage,), job.keys, session)
        except StageFailed as error:
            error.facts = _known_all_the_same(session, error.cause)
            raise
        if (kept := written_files(done[-1].facts)) and not done[-1].reused:
            store.keep_files(stage.name, job.keys[stage.name], files.parent, kept)
        if not _passed(done[-1]):
            break
    return {"stages": [f.stage for f in done]}


def remote_work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The side of a worker on another machine: the same, once it is clear that the key fits that machine."""
    here = Job.from_composed(Composed(tree=payload["tree"], provenance=payload["provenance"])).ingredients.context
    differences = list(_differences(payload["context"], here))
    if differences:
        more = len(differences) - MOST_DIFFERENCES
        raise NpuComposeError(
            "this job's key belongs to the machine that planned the sweep, and the node that should run it differs: "
            f"{'; '.join(differences[:MOST_DIFFERENCES])}{f' and {more} more' if more > 0 else ''}. Plan the sweep on "
            "a machine like the nodes, or choose nodes like it."
        )
    return work(payload, notify)


def _differences(planned: Mapping[str, Mapping[str, str]], here: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for part, values in planned.items():
        for name in dict.fromkeys([*values, *here[part]]):
            one, other = values.get(name), here[part].get(name)
            if one != other:
                yield f"{part}.{name} is {_short(one)} there and {_short(other)} on the node"


def _short(value: str | None) -> str:
    return "missing" if value is None else value if len(value) <= 40 else f"{value[:12]}…"


def _known_all_the_same(session: Session, cause: Exception) -> dict[str, Any]:
    """What the report of a run says of a graph that was not made: a compilation that failed is an answer."""
    from npucompose.npu.static_graph.session import sinking_after

    if isinstance(cause, RejectedError):
        return {"rejected": cause.problems}
    if not isinstance(cause, CompileError):
        return {}
    return {"sinking": facts_of(sinking_after(session, cause))}


def _cache(job: Job, store: Store) -> Path | None:
    """The folder of this experiment's compiled graphs; empty where the compile stage has no record, None
    without that stage, and where none are to be kept.

    Then the stage runs, and must see a compilation: a graph that was loaded leaves no account of passes and graphs.
    Graphs are code, and a store may have come with a stranger's folder: they lie apart, for the store of this place.
    """
    key = job.keys.get("compile")
    if key is None or not job.checked.experiment.compile.cache:
        return None
    folder = private.place_of_ours(COMPILED) / digest(str(store.root.resolve()))[:16] / key
    if store.read("compile", key) is None:
        shutil.rmtree(folder, ignore_errors=True)
    return folder
