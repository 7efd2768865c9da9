"""One experiment: its keys, its worker, its report. The parent waits; only the worker loads torch.

A finished experiment is recognised by its keys alone, in the parent, and runs nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from airflow_free.keys import Ingredients, code_digests, plain
from airflow_free.outcome import Limits, Outcome
from airflow_free.runner import Finished, Runner, StageFailed
from airflow_free.stage import Stage, Tell, silent
from airflow_free.store import Store
from airflow_free.worker import run_in_worker
from npucompose.compose.check import Checked, Known, check
from npucompose.compose.tree import Composed
from npucompose.errors import CompileError, ConfigError, NpuComposeError, RejectedError
from npucompose.experiment import device_verdicts, expectations, tracking
from npucompose.experiment.assemble import assembled
from npucompose.experiment.lock import Locked
from npucompose.experiment.stages import STAGES, ablation, modes
from npucompose.experiment.stages.ablation import Ablation
from npucompose.experiment.stages.modes import Modes
from npucompose.machine import thread_settings
from npucompose.measure.environment import versions
from npucompose.report import html as report_html
from npucompose.report import json as report_json
from npucompose.report.exports import trace_text
from npucompose.report.files import write_atomically
from npucompose.schema.facts import of_facts
from npucompose.schema.record import Report
from npucompose.schema.streams import Timeline
from npucompose.schema.verified import torch_warning
from npucompose.targets.base import Target, check_stages
from npucompose.targets.optional import Warns

if TYPE_CHECKING:
    from npucompose.compose.session import Session

ENTRY = "npucompose.experiment.run:work"
LOG = "run.log"
FILES = "torchair"
"""Folder of the run directory for what the vendor's compiler writes."""
LOCKED = (0, 1)
"""Exit statuses of a run that went to its end: it leaves a recipe.lock.yaml."""

RESULT_ROOMS = (
    "npucompose.ops", "npucompose.graphs", "npucompose.streams", "npucompose.sinking", "npucompose.replay",
    "npucompose.targets",
    "npucompose.compose", "npucompose.measure", "npucompose.schema", "npucompose.passes.base",
    "npucompose.passes.pipeline", "npucompose.passes.proof", "npucompose.passes.metadata", "npucompose.passes.matching",
    "npucompose.passes.outputs", "npucompose.models.base", "npucompose.models.layers",
    "npucompose.models.pretrained", "npucompose.models.small_configs", "npucompose.experiment.stages",
)  # fmt: skip
"""Packages and modules whose source decides a result, beside the passes and the model that the experiment names."""


ANEW = (Ablation.name, Modes.name)
"""Stages that compile the model more than once."""

NOT_IN_A_KEY = ("search", "executor", "retry", "tracker")
"""Fields of the experiment that say why, where and when it runs, and who is told, and nothing about what comes out."""


class Surroundings:
    """What the points of one plan have in common, looked up once: versions, devices, digests of source."""

    def __init__(self) -> None:
        self.versions = versions()
        self.known = Known()
        self.code: dict[str, str] = {}
        self._devices: dict[str, Mapping[str, str]] = {}

    def device(self, target: Target) -> Mapping[str, str]:
        """The target's identity, and what says how many threads torch takes: a plan that pays on two threads may not
        on one, and sums on one thread may have other bits than on two."""
        name = repr(target)
        if name not in self._devices:
            self._devices[name] = {**target.identity(), **thread_settings()}
        return self._devices[name]


@frozen(kw_only=True)
class Job:
    """A checked experiment with its stages in order and a key for each."""

    composed: Composed
    checked: Checked
    order: tuple[Stage[Any], ...]
    ingredients: Ingredients
    keys: Mapping[str, str]

    @staticmethod
    def of(composed: Composed, surroundings: Surroundings | None = None) -> Job:
        """Everything that is known before anything runs; ConfigError when the experiment is not legal."""
        around = surroundings or Surroundings()
        checked = check(composed, known=around.known)
        target = checked.target
        experiment = checked.experiment
        order = STAGES.order(
            wanted(checked),
            cannot_measure=f"target={target.name} has no speed" if target.executes and not target.measures else None,
        )
        check_stages(target, [stage.name for stage in order])
        tracking.check(experiment.tracker, dict(checked.provenance))
        expectations.check(experiment, [stage.name for stage in order])
        if any(stage.name == Ablation.name for stage in order):
            ablation.check(checked)
        modes.check(checked, [stage.name for stage in order])
        ingredients = Ingredients(
            values=values_of(checked),
            versions=around.versions,
            device=around.device(target),
            code=_code(checked, around.code),
        )
        device_verdicts.check(experiment, ingredients.values)
        return Job(
            composed=composed,
            checked=checked,
            order=order,
            ingredients=ingredients,
            keys=ingredients.keys(order),
        )

    @property
    def key(self) -> str:
        """Of the whole experiment: equal keys, equal result."""
        return self.ingredients.key

    @property
    def measures(self) -> bool:
        """Whether a stage takes times, which other jobs beside it would spoil."""
        return any(stage.measures for stage in self.order)

    @property
    def limits(self) -> Limits:
        pipeline = self.checked.experiment.pipeline
        return Limits.of_mib(pipeline.log_limit_mb, pipeline.memory_limit_mb)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        warning = torch_warning(self.ingredients.versions.get("torch"))
        target, mode = self.checked.target, self.checked.experiment.mode.name
        return (*((warning,) if warning else ()), *(target.warnings(mode) if isinstance(target, Warns) else ()))


def wanted(checked: Checked) -> tuple[str, ...]:
    """The stages that the pipeline names, and what else was asked for.

    Where it measures, the modes of `benchmark.against` too; where it compares, the calls of `model.sequence`.
    """
    stages = checked.experiment.pipeline.stages
    calls = checked.model.sequence if checked.model is not None else ()
    compares = any(stage in stages for stage in ("replay", "benchmark", *ANEW))
    if checked.experiment.benchmark.against and "benchmark" in stages:
        stages = (*stages, Modes.name)
    if not calls or not compares:
        return stages
    # What counts compilations comes before what compiles the model anew.
    last = [stage for stage in stages if stage in ANEW]
    return tuple(dict.fromkeys((*(stage for stage in stages if stage not in last), "sequence", *last)))


def values_of(checked: Checked) -> dict[str, Any]:
    """The experiment as plain data; choices with every option that was left at its default."""
    values = plain(checked.experiment)
    for name in NOT_IN_A_KEY:
        del values[name]
    values["compiler"] = checked.experiment.compiler.as_tree(changed_only=True)
    values["inductor"] = checked.experiment.inductor.as_tree()
    values["adapt"] = checked.experiment.adapt.as_tree()
    values["passes"] = {label: {"pass": p.name, **_options(p)} for label, p in checked.passes}
    values["target"] = {"name": checked.target.name, **_options(checked.target)}
    if checked.model is not None:
        values["model"] = {"name": checked.model.name, **_options(checked.model)}
    return values


def _options(chosen: Any) -> dict[str, Any]:
    """The options of a pass, target or model; what the engine filled in is the experiment's own field already."""
    fields = [f for f in attrs.fields(type(chosen)) if not f.metadata.get("from_experiment")]
    return {f.name: plain(getattr(chosen, f.name)) for f in fields}


def _code(checked: Checked, remembered: dict[str, str]) -> dict[str, str]:
    named = {type(p).__module__ for _, p in checked.passes}
    files: Sequence[str] = [file for _, p in checked.passes for file in p.source_files()]
    if checked.model is not None:
        named.add(type(checked.model).__module__)
        files = [*files, *checked.model.source_files()]
    return code_digests((*RESULT_ROOMS, *sorted(named)), files, remembered)


def run_experiment(job: Job, run_dir: Path, *, store: Store, tell: Tell = silent) -> Report:
    """Run what has no record, in a worker; write report.json, recipe.lock.yaml and graphs/, and return the report.

    Raises ConfigError when only the worker could see that the configuration is illegal (a plan that finds no node, a
    model factory that fails): then nothing was measured, and no record and no report is written.
    """
    begun = Begun.of(job, run_dir, store)
    outcome: Outcome | None = None
    if begun.needs_worker:
        outcome = run_in_worker(
            ENTRY,
            begun.payload,
            time_limit_s=job.checked.experiment.pipeline.time_limit_s,
            log_path=run_dir / LOG,
            limits=job.limits,
            on_event=tell,
            env=job.checked.target.environment(),
        )
    return begun.finish(outcome)


@frozen(kw_only=True)
class Begun:
    """A job about to run in a folder: what the store has of it already, and how it is finished."""

    job: Job
    run_dir: Path
    place: Path
    """Where that is, links followed."""
    store: Store
    finished: tuple[Finished, ...]

    @staticmethod
    def of(job: Job, run_dir: Path, store: Store) -> Begun:
        return Begun(job=job, run_dir=run_dir, place=run_dir.resolve(), store=store, finished=_from_store(job, store))

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
            "files": str((self.run_dir / FILES).resolve()),
        }

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
        timelines = _timelines(finished)
        if timelines:
            write_atomically(self.run_dir / "trace.json", trace_text(timelines))
        _bring_files(self.run_dir, finished, self.store)
        report_json.write(report, self.run_dir)
        report_html.write(report, self.run_dir, timelines)
        if report.exit_status in LOCKED:
            Locked.of(job.ingredients, report).write(self.run_dir)
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


def _from_store(job: Job, store: Store) -> tuple[Finished, ...]:
    found = []
    for stage in job.order:
        record = store.read(stage.name, job.keys[stage.name])
        if record is not None and store.has_files(record.stage, record.key, vendor_files(record.facts)):
            found.append(
                Finished(stage=stage.name, key=record.key, facts=record.facts, reused=True, seconds=record.seconds)
            )
    return tuple(found)


def _after_worker(job: Job, store: Store, before: Sequence[Finished]) -> tuple[Finished, ...]:
    """The records as they are now, those that were there before marked as reused."""
    known = {f.stage for f in before}
    return tuple(attrs.evolve(f, reused=f.stage in known) for f in _from_store(job, store))


def _ended_early(finished: Sequence[Finished]) -> bool:
    """A comparison that failed is a result: nothing after it is run, now or the next time."""
    return any(not _passed(f) for f in finished)


def _passed(finished: Finished) -> bool:
    numerics = finished.facts.get("numerics")
    return numerics is None or bool(numerics["passed"])


def _write_graphs(run_dir: Path, finished: Sequence[Finished]) -> None:
    for f in finished:
        for name, text in f.facts.get("texts", {}).items():
            folder = run_dir / "graphs"
            folder.mkdir(exist_ok=True)
            write_atomically(folder / name, text)


def vendor_files(facts: Mapping[str, Any]) -> Sequence[str]:
    """What the vendor's compiler had written when the stage was done."""
    return (facts.get("npu") or {}).get("files", ())


def _bring_files(run_dir: Path, finished: Sequence[Finished], store: Store) -> None:
    """The files of stages that were not run now; the others lie there already."""
    for f in finished:
        if f.reused and vendor_files(f.facts):
            store.bring_files(f.stage, f.key, run_dir / FILES)


def _timelines(finished: Sequence[Finished]) -> list[tuple[str, Timeline]]:
    """(name of a graph, when each kernel ran) of every stage that has such: predicted, then measured."""
    lines = [one for f in finished for one in f.facts.get("timelines", {}).items()]
    found = [(name, of_facts(Timeline, line, where=f"timelines.{name}")) for name, line in lines]
    return sorted(found, key=lambda one: one[0])


def work(payload: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The worker's side: the same job again, from the composed tree, and its stages up to a failed comparison."""
    from npucompose.compose.session import Session
    from npucompose.measure.environment import environment
    from npucompose.schema.facts import facts_of
    from npucompose.targets.base import Folders

    job = Job.of(Composed(tree=payload["tree"], provenance=payload["provenance"]))
    store, files = Store(Path(payload["store"])), Path(payload["files"])
    session = Session(job.checked, Folders(files=files, cache=_cache(job, store)))
    session.set_up()
    runner = Runner(
        store=store,
        tell=tell,
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
        if vendor_files(done[-1].facts) and not done[-1].reused:
            store.keep_files(stage.name, job.keys[stage.name], files, vendor_files(done[-1].facts))
        if not _passed(done[-1]):
            break
    return {"stages": [f.stage for f in done]}


def _known_all_the_same(session: Session, cause: Exception) -> dict[str, Any]:
    """What the report of a run says of a graph that was not made: a compilation that failed is an answer."""
    from npucompose.compose.sinking import sinking_after
    from npucompose.schema.facts import facts_of

    if not isinstance(cause, CompileError) or isinstance(cause, RejectedError):
        return {}
    return {"sinking": facts_of(sinking_after(session, cause))}


def _cache(job: Job, store: Store) -> Path:
    """The folder of this experiment's compiled graphs; empty where the compile stage has no record.

    Then the stage runs, and must see a compilation: a graph that was loaded leaves no account of passes and graphs.
    """
    key = job.keys["compile"]
    folder = store.root / "compiled" / key
    if store.read("compile", key) is None:
        shutil.rmtree(folder, ignore_errors=True)
    return folder
