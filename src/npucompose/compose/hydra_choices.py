"""Hydra's launchers and sweepers, translated: who writes `hydra/launcher=joblib` wants `executor=local`.

The names and keys are those of Hydra's plugins: https://hydra.cc/docs/plugins/joblib_launcher, /submitit_launcher,
/ray_launcher, /optuna_sweeper. What is not in the tables stays refused, with what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from npucompose.compose.overrides import parsed_overrides, translate_hydra_errors
from npucompose.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"


@frozen(kw_only=True)
class Ours:
    """What takes the place of a choice of Hydra's."""

    group: str
    overrides: tuple[str, ...]
    keys: Mapping[str, str] = field(factory=dict[str, str])
    """{Hydra's key below the plugin's own: ours}."""


SUBMITIT = {
    "array_parallelism": "executor.jobs", "partition": "executor.partition", "timeout_min": "executor.time_limit_min",
    "cpus_per_task": "executor.cpus", "gres": "executor.gres",
    **{name: f"+executor.parameters.{name}" for name in ("account", "comment", "constraint", "exclude", "qos")},
}  # fmt: skip
RAY = {
    "ray.init.address": "executor.address", "ray.remote.num_cpus": "executor.cpus",
    "ray.remote.num_gpus": "executor.devices",
}  # fmt: skip
CHOICES = {
    f"{LAUNCHER}=joblib": Ours(group="executor", overrides=("executor=local",), keys={"n_jobs": "executor.jobs"}),
    f"{LAUNCHER}=submitit_local": Ours(
        group="executor", overrides=("executor=slurm", "executor.cluster=local"), keys=SUBMITIT
    ),
    f"{LAUNCHER}=submitit_slurm": Ours(group="executor", overrides=("executor=slurm",), keys=SUBMITIT),
    f"{LAUNCHER}=ray": Ours(group="executor", overrides=("executor=ray",), keys=RAY),
    f"{SWEEPER}=optuna": Ours(
        group="search",
        overrides=("search=optuna",),
        keys={"n_trials": "search.trials", "sampler.seed": "search.seed", "n_jobs": "executor.jobs"},
    ),
}
SAMPLER = f"{SWEEPER}/sampler"
ALL_CORES = {("n_jobs", "-1"): "null"}
"""joblib's word for one job on each core is ours for it."""
SET = re.compile(r"^(hydra\.job\.env_set\.)")
"""A mapping of Hydra's that is empty, so that it takes a name only with a + before it."""


def translated(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the overrides with ours in the place of Hydra's, a sentence for each plugin of Hydra's that was named).

    `translated(["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"])` is `(["executor=local", "executor.jobs=4"],
    ["hydra/launcher=joblib hydra.launcher.n_jobs=4 is executor=local executor.jobs=4 here."])`. With Hydra's Optuna
    sweeper, values after `-m` are its space: `seed=range(0,3)` becomes a dimension of `search.space`.
    """
    overrides = [SET.sub(r"++\1", text) for text in overrides]
    parsed = parsed_overrides(overrides)
    named = {o.key_or_group: ours for o in parsed if (ours := CHOICES.get(str(o.input_line)))}
    if not named:
        return list(overrides), []
    _refuse_twice(parsed, named)
    replaced = {str(o.input_line): texts for o in parsed if (texts := _replacing(o, named))}
    if SWEEPER in named:
        replaced.update(_space([o for o in parsed if o.is_sweep_override()]))
    texts = [text for o in parsed for text in replaced.get(str(o.input_line), (str(o.input_line),))]
    theirs = [text for text in overrides if text in replaced]
    ours = [text for one in theirs for text in replaced[one]]
    return texts, [f"{' '.join(theirs)} is {' '.join(ours)} here."]


def _refuse_twice(parsed: Sequence[Override], named: Mapping[str, Ours]) -> None:
    groups = {ours.group: key for key, ours in named.items()}
    for o in parsed:
        if o.key_or_group in groups:
            raise ConfigError(
                f"{groups[o.key_or_group]}=… and {o.input_line} say the same thing twice: leave one of them out."
            )


def _replacing(o: Override, named: Mapping[str, Ours]) -> tuple[str, ...]:
    """Empty where the override is none of a plugin that was chosen."""
    key = o.key_or_group
    if key in named:
        return named[key].overrides
    if key == SAMPLER and SWEEPER in named:
        return (f"search.sampler={_said(o)}",)
    for plugin, ours in named.items():
        begun = f"{plugin.replace('/', '.')}."
        inner = key.removeprefix(begun)
        if key.startswith(begun) and inner in ours.keys:
            return (f"{ours.keys[inner]}={ALL_CORES.get((inner, _said(o)), _said(o))}",)
    return ()


def _said(o: Override) -> str:
    """The value as it was written."""
    return str(o.input_line).partition("=")[2]


def _space(varying: Sequence[Override]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What varies as one override of `search.space`, in the place of the first; the others say nothing more."""
    with translate_hydra_errors():
        dimensions = [f"{o.key_or_group}:{_dimension(o)}" for o in varying]
    for number, o in enumerate(varying):
        yield str(o.input_line), (f"search.space={{{','.join(dimensions)}}}",) if number == 0 else ()


def _dimension(o: Override) -> str:
    """`interval(1,8)` is `{low:1.0,high:8.0}`, `a,b` is `{one_of:[a,b]}`, as Hydra's sweeper reads them."""
    from hydra.core.override_parser.types import IntervalSweep

    value: Any = o.value()
    if isinstance(value, IntervalSweep):
        log = ",log:true" if "log" in value.tags else ""
        return f"{{low:{value.start},high:{value.end}{log}}}"
    return f"{{one_of:[{','.join(map(str, o.sweep_string_iterator()))}]}}"
