"""The first pass that breaks an experiment: it is run with ever fewer of its passes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from airflow_free.store import Store
from npucompose.compose.tree import Composed
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.run import run_experiment
from npucompose.results.record import Report

NO_RULES = {"name": "none", "rules": []}


@frozen(kw_only=True)
class Verdict:
    """`guilty` is the label of the first pass with which it does not hold; None when all holds."""

    guilty: str | None
    error: str | None = None
    """What went wrong with it, in the report's words."""
    runs: int


def bisect(composed: Composed, store: Store, tell: Callable[[str], None]) -> Verdict:
    """Halve the list of passes until one pass makes the difference between holding and not.

    Compiles, records and compares with eager; nothing is measured. An experiment that does not hold without any pass
    is a ConfigError: no pass is to blame.
    """
    checked = Job.of(composed).checked
    labels = [label for label, _ in checked.passes]
    tries = _Tries(composed, checked.experiment.passes, store, tell)
    if not labels:
        raise ConfigError("bisect: the experiment has no passes; name some: passes=[cse,stream_plan].")
    last = tries.run(labels)
    if last.status == "ok":
        return Verdict(guilty=None, runs=tries.count)
    bare = tries.run([])
    if bare.status != "ok":
        raise ConfigError(f"bisect: it does not hold without any pass either ({bare.status}: {bare.error})")
    holds, breaks = 0, len(labels)
    while breaks - holds > 1:
        middle = (holds + breaks) // 2
        report = tries.run(labels[:middle])
        if report.status == "ok":
            holds = middle
        else:
            breaks, last = middle, report
    return Verdict(guilty=labels[breaks - 1], error=last.error, runs=tries.count)


class _Tries:
    """Runs the experiment with the first passes of the list."""

    def __init__(
        self, composed: Composed, passes: Mapping[str, Any], store: Store, tell: Callable[[str], None]
    ) -> None:
        self.composed, self.passes, self.store, self.tell = composed, passes, store, tell
        self.count = 0

    def run(self, labels: list[str]) -> Report:
        tree = dict(self.composed.tree)
        given = tree.get("passes") or {}
        tree["passes"] = {label: given.get(label) for label in labels}
        if not any(self.passes[label].name == "adapt" for label in labels):
            tree["adapt"] = NO_RULES  # or the pass that follows the rules would come back by itself
        job = Job.of(attrs.evolve(self.composed, tree={**tree, "pipeline": _comparing(job_tree=tree)}))
        self.count += 1
        with tempfile.TemporaryDirectory() as folder:
            report = run_experiment(job, Path(folder), store=self.store)
        self.tell(f"{', '.join(labels) or 'no pass'}: {report.status}")
        return report


def _comparing(job_tree: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's pipeline, as far as the comparison with eager."""
    return {**(job_tree.get("pipeline") or {}), "stages": ["replay"]}
