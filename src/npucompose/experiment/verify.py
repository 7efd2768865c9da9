"""A lock against another one, or against a run here and now: what is the same, what differs, does the result hold?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from airflow_free.store import Store
from npucompose.compose.tree import COMMAND_LINE, Composed
from npucompose.errors import NpuComposeError
from npucompose.experiment.job import Job
from npucompose.experiment.lock import EXCLUDED, Locked
from npucompose.experiment.run import LOCKED, run_experiment
from npucompose.table.plain import facts_of
from npucompose.vendor.option_specs import shown

DECIDING = ("configuration", "graphs", "numerics", "speedup")
"""What has to agree. Another machine has another device and may have other versions: those are told."""
ORIGIN = "recipe.lock.yaml"
ORDER = "(order)"


@frozen(kw_only=True)
class Difference:
    """`Difference(part="versions", field="torch", locked="2.13.0", here="2.14.0")`."""

    part: str
    field: str
    locked: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.part}.{self.field}: locked {_short(self.locked)}, here {_short(self.here)}"


@frozen(kw_only=True)
class Verdict:
    compared: Mapping[str, int]
    """{part: how many values were compared}."""
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        return not any(d.part in DECIDING for d in self.differences)


def job_of(locked: Locked, *, trust: bool = False) -> Job:
    """The locked experiment, checked on this machine as any other; only the command line can trust."""
    tree = {**locked.experiment, "trust": trust}
    provenance = dict.fromkeys(locked.experiment, ORIGIN) | ({"trust": COMMAND_LINE} if trust else {})
    return Job.of(Composed(tree=tree, provenance=provenance))


def run_again(locked: Locked, *, trust: bool = False) -> Locked:
    """The same experiment run here, with a store of its own so that nothing is taken from an earlier run."""
    job = job_of(locked, trust=trust)
    with tempfile.TemporaryDirectory(prefix="npucompose-verify-") as folder:
        return lock(job, store=Store(Path(folder)))


def lock(job: Job, *, store: Store) -> Locked:
    """Run it and lock what came of it; NpuComposeError when it did not go to its end."""
    with tempfile.TemporaryDirectory(prefix="npucompose-lock-") as folder:
        report = run_experiment(job, Path(folder), store=store)
    if report.exit_status not in LOCKED:
        raise NpuComposeError(f"{report.status}: {report.error}")
    return Locked.of(job.ingredients, report)


def compared(locked: Locked, here: Locked, *, tolerance: float) -> Verdict:
    """`tolerance` is the part of the locked speed-up that may be missing: 0.2 takes 1.6 for 2.0."""
    sides = [_parts(side) for side in (locked, here)]
    differences: list[Difference] = []
    for part, (then, now) in {part: (sides[0][part], sides[1][part]) for part in sides[0]}.items():
        differences += [
            Difference(part=part, field=name, locked=then.get(name), here=now.get(name))
            for name in dict.fromkeys([*then, *now])
            if then.get(name) != now.get(name) and not _said_by_others(name, then, now)
        ]
    differences += _numerics(locked, here)
    differences += _speedup(locked, here, tolerance)
    counts = {part: len(values) for part, values in sides[0].items()}
    return Verdict(compared=counts, differences=tuple(differences))


def _parts(side: Locked) -> dict[str, dict[str, Any]]:
    experiment = {name: value for name, value in side.experiment.items() if name not in EXCLUDED}
    return {
        "configuration": dict(_leaves(experiment)),
        "graphs": dict(_leaves({graph.id: facts_of(graph) for graph in side.graphs})),
        "versions": dict(side.versions),
        "device": dict(side.device),
        "sources": dict(side.sources),
    }


def _leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value); an empty mapping is a value, and so is the order of a mapping's names."""
    for name, value in tree.items():
        path = f"{at}.{name}" if at else str(name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
    if tree and all(isinstance(value, Mapping) for value in tree.values()):
        yield f"{at}.{ORDER}".lstrip("."), list(tree)


def _said_by_others(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """An empty mapping, or the order of a mapping, that only one side has: what it holds on the other side is named."""
    if name in then and name in now:
        return False
    value = then.get(name, now.get(name))
    return name.endswith(ORDER) or (value == {} and any(other.startswith(f"{name}.") for other in (*then, *now)))


def _numerics(locked: Locked, here: Locked) -> Iterator[Difference]:
    """What held there has to hold here: the comparison with eager, and equality of bits where there was one."""
    for name in ("passed", "bitwise"):
        then, now = (getattr(side.result.numerics, name, None) for side in (locked, here))
        if then and not now:
            yield Difference(part="numerics", field=name, locked=True, here=now)


def _speedup(locked: Locked, here: Locked, tolerance: float) -> Iterator[Difference]:
    """A faster machine breaks no promise; what was not measured there promises nothing."""
    then, now = (b.speedup if (b := side.result.benchmark) is not None else {} for side in (locked, here))
    for name, value in then.items():
        found = now.get(name)
        if found is None or found < value * (1 - tolerance):
            yield Difference(part="speedup", field=name, locked=value, here=found)


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:12]}…"
