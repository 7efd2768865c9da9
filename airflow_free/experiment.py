"""One experiment: its keys, its worker, its report. The parent waits; only the worker loads torch.

A finished experiment is recognised by its keys alone, in the parent, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from airflow_free.assemble import assembled
from airflow_free.keys import Ingredients, code_digests, plain
from airflow_free.runner import Finished, Runner
from airflow_free.stage import Stage, Tell, silent
from airflow_free.stages import STAGES
from airflow_free.store import Store
from airflow_free.worker import Outcome, run_in_worker
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import Composed
from npucompose.errors import ConfigError
from npucompose.measure.environment import versions
from npucompose.report import json as report_json
from npucompose.report.files import write_atomically
from npucompose.schema.record import Report
from npucompose.schema.verified import torch_warning

ENTRY = "airflow_free.experiment:work"
LOG = "run.log"

RESULT_ROOMS = (
    "npucompose.ops", "npucompose.graphs", "npucompose.streams", "npucompose.targets", "npucompose.compose",
    "npucompose.measure", "npucompose.schema", "npucompose.passes.base", "npucompose.passes.pipeline",
    "npucompose.passes.proof", "npucompose.passes.metadata", "npucompose.passes.dtypes", "npucompose.passes.outputs",
    "npucompose.models.base", "npucompose.models.modules", "airflow_free.stages",
)  # fmt: skip
"""Packages and modules whose source decides a result, beside the passes and the model that the experiment names."""


@frozen(kw_only=True)
class Job:
    """A checked experiment with its stages in order and a key for each."""

    composed: Composed
    checked: Checked
    order: tuple[Stage[Any], ...]
    ingredients: Ingredients
    keys: Mapping[str, str]

    @staticmethod
    def of(composed: Composed) -> Job:
        """Everything that is known before anything runs; ConfigError when the experiment is not legal."""
        checked = check(composed)
        target = checked.target
        experiment = checked.experiment
        order = STAGES.order(
            experiment.pipeline.stages,
            cannot_measure=f"target={target.name} has no speed" if target.executes and not target.measures else None,
        )
        target.check_stages([stage.name for stage in order])
        ingredients = Ingredients(
            values=_values(checked), versions=versions(), device=target.identity(), code=_code(checked)
        )
        return Job(
            composed=composed,
            checked=checked,
            order=order,
            ingredients=ingredients,
            keys=ingredients.keys(order),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        warning = torch_warning(self.ingredients.versions.get("torch"))
        target, mode = self.checked.target, self.checked.experiment.mode.name
        return (*((warning,) if warning else ()), *target.warnings(mode))


def _values(checked: Checked) -> dict[str, Any]:
    """The experiment as plain data; choices with every option that was left at its default."""
    values = plain(checked.experiment)
    values["compiler"] = checked.experiment.compiler.as_tree(changed_only=True)
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


def _code(checked: Checked) -> dict[str, str]:
    named = {type(p).__module__ for _, p in checked.passes}
    files: Sequence[str] = [file for _, p in checked.passes for file in p.source_files()]
    if checked.model is not None:
        named.add(type(checked.model).__module__)
        files = [*files, *checked.model.source_files()]
    return code_digests((*RESULT_ROOMS, *sorted(named)), files)


def run_experiment(job: Job, run_dir: Path, *, store: Store, tell: Tell = silent) -> Report:
    """Run what has no record, in a worker; write report.json and graphs/ into `run_dir` and return the report.

    Raises ConfigError when only the worker could see that the configuration is illegal (a plan that finds no node, a
    model factory that fails): then nothing was measured, and no record and no report is written.
    """
    finished = _from_store(job, store)
    outcome: Outcome | None = None
    if len(finished) < len(job.order) and not _ended_early(finished):
        outcome = run_in_worker(
            ENTRY,
            {
                "tree": dict(job.composed.tree),
                "provenance": dict(job.composed.provenance),
                "store": str(store.root.resolve()),
                "run_dir": run_dir.name,
            },
            time_limit_s=job.checked.experiment.pipeline.time_limit_s,
            log_path=run_dir / LOG,
            on_event=tell,
            env=job.checked.target.environment(),
        )
        if outcome.status == "config_error":
            raise ConfigError(*(outcome.problems or (outcome.error or "",)))
        finished = _after_worker(job, store, finished)
    report = assembled(job.checked, job.ingredients, job.order, finished, store, outcome)
    _write_graphs(run_dir, finished)
    report_json.write(report, run_dir)
    return report


def _from_store(job: Job, store: Store) -> list[Finished]:
    found = []
    for stage in job.order:
        record = store.read(stage.name, job.keys[stage.name])
        if record is not None:
            found.append(
                Finished(stage=stage.name, key=record.key, facts=record.facts, reused=True, seconds=record.seconds)
            )
    return found


def _after_worker(job: Job, store: Store, before: Sequence[Finished]) -> list[Finished]:
    """The records as they are now, those that were there before marked as reused."""
    known = {f.stage for f in before}
    return [attrs.evolve(f, reused=f.stage in known) for f in _from_store(job, store)]


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


def work(payload: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The worker's side: the same job again, from the composed tree, and its stages up to a failed comparison."""
    from npucompose.compose.session import Session
    from npucompose.measure.environment import environment
    from npucompose.schema.record import facts_of

    job = Job.of(Composed(tree=payload["tree"], provenance=payload["provenance"]))
    session = Session(job.checked)
    session.set_up()
    runner = Runner(
        store=Store(Path(payload["store"])),
        tell=tell,
        environment=facts_of(environment(job.checked.target.identity())),
        provenance={"run": payload["run_dir"]},
    )
    done: list[Finished] = []
    for stage in job.order:
        done += runner.run((stage,), job.keys, session)
        if not _passed(done[-1]):
            break
    return {"stages": [f.stage for f in done]}
