"""The points of a sweep: every combination of the values on the command line, composed and checked before any runs."""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, frozen

from airflow_free import sweep
from airflow_free.keys import digest
from npucompose.compose.overrides import parsed_overrides, translate_hydra_errors
from npucompose.compose.tree import COMMAND_LINE, Composed, Composer
from npucompose.errors import ConfigError, MissingExtra, listed, raise_for
from npucompose.experiment.job import NOT_IN_A_KEY, Job, PlanContext
from npucompose.schema.sweep import Executor, Local

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

PROPOSED = "search.space"
MOST_POINTS = 100_000
PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""What an executor needs: a package that the extra of the executor's name brings."""
Point = sweep.Point[Job]


@frozen(kw_only=True, slots=False)
class SweepPlan:
    points: tuple[Point, ...]
    executor: Executor
    again: Literal["none", "failed", "all"]
    """Which of its points are run although they are done."""

    @cached_property
    def varying(self) -> frozenset[str]:
        """The overrides that not every point has."""
        counts = Counter(text for point in self.points for text in point.overrides)
        return frozenset(text for text, times in counts.items() if times < len(self.points))

    def name(self, point: Point) -> str:
        """What tells the point from the others: `model=add seed=3`."""
        return " ".join(text for text in point.overrides if text in self.varying) or f"job {point.number}"

    @property
    def illegal(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.job is None)

    @staticmethod
    def from_overrides(overrides: Sequence[str], composer: Composer) -> SweepPlan:
        """All points; ConfigError when the command line cannot be read, or when no point of it is legal."""
        context = PlanContext()
        points = tuple(point_of(n, texts, composer, context) for n, texts in enumerate(expanded(overrides, composer)))
        jobs = [point.job for point in points if point.job is not None]
        if not jobs:
            raise ConfigError(*dict.fromkeys(problem for point in points for problem in point.problems))
        executor = _the_same([job.checked.experiment.executor for job in jobs], "executor")
        check_installed(executor)
        if any(job.checked.experiment.search.name != "none" for job in jobs):
            raise ConfigError(
                "a search takes one value for each key of the command line: what varies is said by search.space."
            )
        retry = _the_same([job.checked.experiment.retry for job in jobs], "retry")
        return SweepPlan(points=points, executor=executor, again=retry)


def expanded(overrides: Sequence[str], composer: Composer) -> list[tuple[str, ...]]:
    """`["mode=eager,reduce-overhead", "seed=1"]` is `[("mode=eager", "seed=1"), ("mode=reduce-overhead", "seed=1")]`.

    The first override varies slowest. Takes lists, choice(…), range(…) and glob(…).
    """
    parsed = parsed_overrides(overrides)
    raise_for([problem for o in parsed if (problem := _unsweepable(o)) is not None])
    with translate_hydra_errors():
        ways = [_ways(o, composer) for o in parsed]
    if math.prod(map(len, ways)) > MOST_POINTS:
        raise ConfigError(f"this sweep has more than {MOST_POINTS:,} jobs, the most that are planned at once.")
    return list(product(*ways))


def _unsweepable(o: Override) -> str | None:
    if not o.is_sweep_override():
        return None
    if o.is_hydra_override():
        return f"'{o.input_line}' sweeps over a setting of Hydra, which says nothing of the experiment."
    if not o.is_discrete_sweep():
        return f"'{o.input_line}' names an interval; a sweep takes values: a,b or choice(a,b) or range(1,9) or glob(*)."
    return None


def _ways(o: Override, composer: Composer) -> list[str]:
    if not o.is_sweep_override():
        return [str(o.input_line)]
    o.config_loader = composer.loader  # glob(…) asks it for the choices of the group
    ways = [f"{o.get_key_element()}={value}" for value in islice(o.sweep_string_iterator(), MOST_POINTS + 1)]
    if not ways:
        raise ConfigError(f"'{o.input_line}' stands for no value at all.")
    return ways


def point_of(
    number: int, texts: Sequence[str], composer: Composer, context: PlanContext, proposed: Collection[str] = ()
) -> Point:
    """Of these overrides, legal or not. Settings of Hydra are checked with the point and are none of its own."""
    own = tuple(text for text in texts if _first(text) != "hydra")
    try:
        job = Job.from_composed(_honestly(composer.compose(texts), proposed), context)
        _check_device(job)
    except ConfigError as error:
        # There is no experiment: the key is of what was asked for, without where and when it would have run.
        key = digest(["illegal", [text for text in own if _first(text) not in NOT_IN_A_KEY]])
        return Point(number=number, overrides=own, job=None, problems=error.problems, key=key)
    return Point(number=number, overrides=own, job=job, key=job.key)


def _honestly(composed: Composed, proposed: Collection[str]) -> Composed:
    """With the origin of the keys that no person has written: a search may not do what only the command line may."""
    keys = {key.lstrip("+") for key in proposed}
    changed = {
        path: PROPOSED
        for path, origin in (composed.provenance.items() if keys else ())
        if origin == COMMAND_LINE and any(path == key or path.startswith(f"{key}.") for key in keys)
    }
    return evolve(composed, provenance={**composed.provenance, **changed}) if changed else composed


def _first(text: str) -> str:
    """`executor` of `+executor.jobs=2`."""
    return re.split(r"[.=/]", text.lstrip("+~"), maxsplit=1)[0]


def _check_device(job: Job) -> None:
    target, executor = job.checked.target, job.checked.experiment.executor
    devices = executor.devices if isinstance(executor, Local) else ()
    if devices and target.device_variable is not None and target.device_index != 0:
        raise ConfigError(
            f"executor.devices={list(devices)} hands out devices, of which each job sees one, as number 0; "
            f"target.index={target.device_index} would be another: leave it out."
        )


def check_installed(executor: Executor) -> None:
    """Raise MissingExtra where the package of an executor is not there; asked before anything is made."""
    package = PACKAGES.get(executor.name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtra(f"executor={executor.name}", package, executor.name)


def _the_same(values: Sequence[Any], name: str) -> Any:
    """Where a sweep runs is not part of a point."""
    if any(value != values[0] for value in values):
        raise ConfigError(f"'{name}' differs between the jobs of the sweep ({listed(map(str, set(values)))}).")
    return values[0]
