"""One experiment as a job: its stages in order, a key for each, and what a worker of it is given. Runs nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from airflow_free.executors import Device
from airflow_free.forkserver import WorkerTask
from airflow_free.keys import Ingredients, code_digests, digest, plain
from airflow_free.outcome import Limits
from airflow_free.stage import Stage
from npucompose import private
from npucompose.compose.check import Checked, SectionCache, check
from npucompose.compose.tree import Composed
from npucompose.errors import ConfigError, raise_for, unknown
from npucompose.experiment import expectations, tracking
from npucompose.experiment.lock import EXCLUDED
from npucompose.experiment.orchestrator import PROGRAM, default_store, translate_errors, worker_environment
from npucompose.experiment.stages import STAGES, ablation, benchmark, generate, graph_of, legality, modes
from npucompose.experiment.stages.ablation import AblationStage
from npucompose.experiment.stages.generate import GenerateStage
from npucompose.experiment.stages.modes import ModesStage
from npucompose.input_safety import read_text
from npucompose.machine import thread_settings
from npucompose.measure.environment import versions
from npucompose.registry import OURS
from npucompose.results import premises
from npucompose.results.effective import Setting, settings
from npucompose.schema.experiment import GENERATE, Experiment
from npucompose.table.structure import flat
from npucompose.targets.base import Target, check_stages
from npucompose.version import torch_warning

LOG = "run.log"
RESULT_PACKAGES = (
    "npucompose.ops", "npucompose.graphs", "npucompose.streams", "npucompose.npu", "npucompose.recorder",
    "npucompose.placement", "npucompose.bits", "npucompose.targets", "npucompose.compose", "npucompose.measure",
    "npucompose.schema", "npucompose.table", "npucompose.vendor", "npucompose.results", "npucompose.passes.base",
    "npucompose.passes.pipeline", "npucompose.passes.proof", "npucompose.passes.metadata",
    "npucompose.passes.simplify", "npucompose.models.base", "npucompose.models.layers",
    "npucompose.experiment.stages",
)  # fmt: skip
"""Packages and modules whose source decides a result, beside the passes and the model that the experiment names."""


ANEW = (AblationStage.name, ModesStage.name)
"""Stages that compile the model more than once."""

NOT_IN_A_KEY = ("search", "executor", "retry", "tracker")
"""Fields of the experiment that say why, where and when it runs, and who is told, and nothing about what comes out."""

WHERE_IT_RUNS = frozenset({"target", "pipeline", "benchmark", "executor", "search", "tracker", "retry", "expect"})
"""Sections that a device kit does not take along: where and how an experiment is run here."""
DEVICES = "device"
"""Folder beside the store of what result files of devices say, asked whenever an experiment for an NPU is checked."""
CACHES = "caches"
"""Of a payload: folders of compiled code that no worker has to look through again."""


class PlanContext:
    """What the jobs of one plan have in common, looked up once: versions, devices, digests of source."""

    def __init__(self) -> None:
        self.versions = versions()
        self.sections = SectionCache()
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
    def from_composed(composed: Composed, context: PlanContext | None = None) -> Job:
        """Everything that is known before anything runs; ConfigError when the experiment is not legal."""
        with translate_errors():
            return _job(composed, context or PlanContext())

    @property
    def key(self) -> str:
        """Of the whole experiment: equal keys, equal result."""
        return self.ingredients.key

    @property
    def device(self) -> Device:
        target, mode = self.checked.target, self.checked.experiment.mode.name
        kind = target.capabilities(mode).device.partition(":")[0]
        return Device(kind=kind, variable=target.device_variable, index=target.device_index)

    @property
    def measures(self) -> bool:
        """Whether a stage takes times, which other jobs beside it would spoil."""
        return any(stage.measures for stage in self.order)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        warning = torch_warning(self.ingredients.versions.get("torch"))
        target, mode = self.checked.target, self.checked.experiment.mode.name
        return (*((warning,) if warning else ()), *target.warnings(mode))


def _unknown_stages(tree: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each stage that there is not, beside the other mistakes of the experiment."""
    pipeline = tree.get("pipeline")
    named = pipeline.get("stages") if isinstance(pipeline, Mapping) else None
    known = STAGES.names()
    for name in named if isinstance(named, Sequence) and not isinstance(named, str) else ():
        if name not in known:
            yield unknown("stage", str(name), known, "pipeline.stages")


def _outside_of_the_key(composed: Composed) -> Iterator[str]:
    """A sentence for each leaf that reads the environment where the key would not have what it read."""
    for path in composed.variables:
        if path.partition(".")[0] in NOT_IN_A_KEY:
            yield f"{path} reads the environment, and is no part of the key of a run: write the value itself."


def _job(composed: Composed, context: PlanContext) -> Job:
    try:
        checked = check(composed, sections=context.sections)
    except ConfigError as error:
        raise ConfigError(*error.problems, *_unknown_stages(composed.tree)) from error
    raise_for(list(_outside_of_the_key(composed)))
    target = checked.target
    experiment = checked.experiment
    asked = wanted(checked)
    order = graph_of(asked).order(
        asked,
        where="pipeline.stages",
        cannot_measure=f"target={target.name} has no speed" if target.executes and not target.measures else None,
    )
    stages = [stage.name for stage in order]
    check_stages(target, stages)
    tracking.check(experiment.tracker, dict(checked.provenance))
    expectations.check(experiment, stages)
    checked = expectations.with_implied(checked, stages)
    if AblationStage.name in stages:
        ablation.check(checked)
    legality.check(experiment.mode.name, stages)
    modes.check(checked, stages)
    benchmark.check(experiment, stages)
    generate.check(checked, stages)
    ingredients = Ingredients(
        values=values_of(checked),
        outside=frozenset(_outside_of_keys(checked)),
        versions=context.versions,
        device=context.device(target),
        code=_code(checked, order, context.code),
    )
    if target.capabilities(experiment.mode.name).vendor_compiler:
        check_claims(experiment, ingredients.values, _device_results())
    return Job(
        composed=composed,
        checked=checked,
        order=order,
        ingredients=ingredients,
        keys=ingredients.keys(order),
    )


def wanted(checked: Checked) -> tuple[str, ...]:
    """The stages that the pipeline names, and what else was asked for.

    Where it measures, the modes of `benchmark.against` too, and generation where that is the scenario; where it
    compares, the calls of `model.sequence`.
    """
    stages = checked.experiment.pipeline.stages
    calls = checked.model.sequence if checked.model is not None else ()
    compares = any(stage in stages for stage in ("replay", "benchmark", *ANEW))
    if checked.experiment.benchmark.against and "benchmark" in stages:
        stages = (*stages, ModesStage.name)
    if checked.experiment.scenario.name == GENERATE and "benchmark" in stages:
        stages = (*stages, GenerateStage.name)
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
    if named := values.pop("extensions")["named"]:
        values["extensions"] = named
    if checked.model is not None:
        values["model"] = {"name": checked.model.name, **_options(checked.model)}
    return values


def _options(chosen: Any) -> dict[str, Any]:
    """The options of a pass, target or model; what the engine filled in is the experiment's own field already."""
    fields = [f for f in attrs.fields(type(chosen)) if not f.metadata.get("from_experiment")]
    return {f.name: plain(getattr(chosen, f.name)) for f in fields}


def _outside_of_keys(checked: Checked) -> Iterator[str]:
    """Options of the chosen model, target and passes that say themselves that they decide no result."""
    chosen: list[tuple[str, Any]] = [("model", checked.model), ("target", checked.target)]
    chosen += [(f"passes.{label}", one) for label, one in checked.passes]
    for where, one in chosen:
        for f in attrs.fields(type(one)) if one is not None else ():
            if not f.metadata.get("in_key", True):
                yield f"{where}.{f.name}"


def _code(checked: Checked, order: Sequence[Stage[Any]], remembered: dict[str, str]) -> dict[str, str]:
    parts = (checked.target, *order, *checked.experiment.extensions.named.values())
    named = {source for part in parts if not (source := source_of(type(part))).startswith(RESULT_PACKAGES)}
    named |= {source_of(type(p)) for _, p in checked.passes} | {*checked.target.sources()}
    files: Sequence[str] = [file for _, p in checked.passes for file in p.source_files()]
    if checked.model is not None:
        named.add(source_of(type(checked.model)))
        files = [*files, *checked.model.source_files()]
    return code_digests((*RESULT_PACKAGES, *sorted(named)), files, remembered)


def source_of(cls: type[Any]) -> str:
    """The module whose source decides what a class does; of an installed package's class all that lies beside it."""
    module = sys.modules[cls.__module__]
    return (module.__package__ or module.__name__) if cls.__module__.partition(".")[0] != OURS else module.__name__


def settings_of(checked: Checked) -> tuple[Setting, ...]:
    """Every value of a checked experiment with who said it, the compiler's options whole: those of its key, and those
    that decide no result."""
    experiment = checked.experiment
    values = {**values_of(checked), **{name: plain(getattr(experiment, name)) for name in NOT_IN_A_KEY}}
    values["compiler"] = experiment.compiler.as_tree()
    return settings(flat(values), checked.provenance, checked.effective)


def worker_task(checked: Checked, entry: str, payload: Mapping[str, Any], log_path: Path) -> WorkerTask:
    """`entry` called with `payload` and the caches of compilers, within the limits of the experiment and in the
    environment of its target."""
    pipeline = checked.experiment.pipeline
    caches = private.make_private()  # first: it sets variables of that environment
    return WorkerTask(
        entry=entry,
        payload={**payload, CACHES: caches},
        time_limit_s=pipeline.time_limit_s,
        log_path=log_path,
        limits=Limits.from_mib(pipeline.log_limit_mb, pipeline.memory_limit_mb, "pipeline.memory_limit_mb"),
        environment=worker_environment(checked.target.environment()),
        program=PROGRAM,
    )


def set_up_worker(payload: Mapping[str, Any]) -> None:
    """In the worker, before anything is compiled."""
    private.take(payload.get(CACHES, ()))


def device_folder(device: str) -> Path:
    """Where what a device's result file says is kept: beside the store."""
    return default_store().root / DEVICES / device


def recipe_key(values: Mapping[str, Any]) -> str:
    """Of an experiment, wherever it is run: by it a kit's claims about itself are known again."""
    return digest({name: value for name, value in values.items() if name not in EXCLUDED | WHERE_IT_RUNS})


def _device_results() -> Iterator[premises.DeviceResults]:
    for file in sorted(device_folder("").glob("*/verdicts.json")):
        yield premises.read(file, read_text(file))


def check_claims(experiment: Experiment, values: Mapping[str, Any], results: Iterable[premises.DeviceResults]) -> None:
    """ConfigError where an experiment for an NPU rests on a claim that a device refuted. Claims of a kit about its own
    recipe count where it is this one.
    """
    key = recipe_key(values)
    problems: list[str] = []
    for one in results:
        own = tuple(name for name in one.claims if name.startswith("kit") and one.data.get("recipe") == key)
        problems += premises.refuted(experiment, one, own)
    raise_for(problems)
