"""The first pass that breaks an experiment: it is run with ever fewer of its passes."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from airflow_free.store import Store
from npucompose.compose.check import Checked
from npucompose.compose.tree import Composed, compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.run import run_experiment
from npucompose.results.record import Report

NO_RULES = {"name": "none", "rules": []}


@frozen(kw_only=True)
class GuiltyPass:
    """`guilty` is the label of the first pass with which it does not hold; None when all holds."""

    guilty: str | None
    error: str | None = None
    """What went wrong with it, in the report's words."""
    runs: int


def act(arguments: argparse.Namespace) -> int:
    """`npucompose bisect`: 1 where a pass breaks it."""
    composed = compose(arguments.overrides, config_dirs=arguments.config_dir, environment=arguments.env)
    found = bisect(composed, default_store(), lambda line: print(f"  {line}", flush=True))
    if found.guilty is None:
        print("it holds with all of its passes.")
        return 0
    print(f"passes.{found.guilty} is the first pass that breaks it: {found.error}")
    return 1


def bisect(composed: Composed, store: Store, notify: Callable[[str], None]) -> GuiltyPass:
    """Halve the list of passes until one pass makes the difference between holding and not.

    Compiles, records and compares with eager; nothing is measured. An experiment that does not hold without any pass
    is a ConfigError: no pass is to blame.
    """
    checked = Job.from_composed(composed).checked
    labels = [label for label, _ in checked.passes]
    if not labels:
        raise ConfigError("bisect: the experiment has no passes; name some: passes=[cse,stream_plan].")
    runs = 0

    def report_of(count: int) -> Report:
        nonlocal runs
        runs += 1
        report = _run_with(labels[:count], composed, checked, store)
        notify(f"{', '.join(labels[:count]) or 'no pass'}: {report.status}")
        return report

    last = report_of(len(labels))
    if last.exit_status == 0:
        return GuiltyPass(guilty=None, runs=runs)
    bare = report_of(0)
    if bare.exit_status != 0:
        raise ConfigError(f"bisect: it does not hold without any pass either ({bare.status}: {bare.error})")
    holds, breaks = 0, len(labels)
    while breaks - holds > 1:
        middle = (holds + breaks) // 2
        report = report_of(middle)
        if report.exit_status == 0:
            holds = middle
        else:
            breaks, last = middle, report
    return GuiltyPass(guilty=labels[breaks - 1], error=last.error, runs=runs)


def _run_with(labels: Sequence[str], composed: Composed, checked: Checked, store: Store) -> Report:
    """The experiment with the first passes of the list, as far as the comparison with eager."""
    tree, given = composed.tree, composed.tree.get("passes") or {}
    changes: dict[str, Any] = {
        "passes": {label: given.get(label) for label in labels},
        "pipeline": {**(tree.get("pipeline") or {}), "stages": ["replay"]},
    }
    if not any(checked.experiment.passes[label].name == "adapt" for label in labels):
        changes["adapt"] = NO_RULES  # or the pass that follows the rules would come back by itself
    job = Job.from_composed(attrs.evolve(composed, tree={**tree, **changes}))
    with tempfile.TemporaryDirectory() as folder:
        return run_experiment(job, Path(folder), store=store)
