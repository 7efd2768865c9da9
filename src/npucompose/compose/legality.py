"""Which requests do not take effect, and whether that is an error: strict off | mode | all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import asdict

from npucompose.compose.legality_compile import compile_keys
from npucompose.compose.legality_device import device_limits
from npucompose.compose.legality_ge import ge_streams
from npucompose.compose.legality_inductor import inductor_options
from npucompose.errors import ConfigError, listed
from npucompose.passes.base import Pass
from npucompose.schema.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.legality import legality
from npucompose.targets.base import Target
from npucompose.targets.optional import VendorCompiled


def effective_options(
    experiment: Experiment, target: Target, passes: Sequence[tuple[str, Pass]]
) -> tuple[Effective, ...]:
    """Every request that does not take effect as asked, with the reason; ConfigError where `strict` refuses it."""
    mode = experiment.mode.name
    compiler = legality(
        experiment.compiler,
        mode=mode,
        target=target.name,
        honoured=target.support(mode).options,
        strict=experiment.strict,
    )
    forced = target.overrides(mode, experiment.compiler) if isinstance(target, VendorCompiled) else ()
    return (
        *compiler,
        *forced,
        *_gears(experiment),
        *_cores(experiment, target),
        *_eager(experiment, passes),
        *_fused(experiment, target, passes),
        *_idle(experiment, target, passes),
        *device_limits(experiment, target, passes),
        *ge_streams(experiment),
        *compile_keys(experiment, target),
        *inductor_options(experiment, target),
    )


def _gears(experiment: Experiment) -> list[Effective]:
    """Gears are GE's: an error in a mode that captures, listed on a device without GE."""
    gears, mode, target = experiment.shapes.gears, experiment.mode.name, experiment.target.name
    if not gears:
        return []
    problems = [
        f"shapes.gears '{key}' takes 2 to 100 sizes of at least 2 (torch makes 0 and 1 constants); "
        f"given {list(sizes)}{_other_gears(sizes)}"
        for key, sizes in gears.items()
        if not 2 <= len(sizes) <= 100 or min(sizes) < 2
    ]
    problems += _merged(experiment)
    if experiment.shapes.dynamic is not True:
        problems.append("shapes.gears needs dynamic shapes: write shapes=dynamic.")
    if not experiment.compile.fullgraph:
        problems.append("shapes.gears needs one whole graph: write compile.fullgraph=true.")
    why = f"gears do not act in mode={mode}; they act in: max-autotune"
    if mode == "max-autotune":
        why = "" if target in ("npu", "npu_offline") else f"gears have no meaning on target={target}"
    refuses = ("all",) if mode in ("max-autotune", "eager") else ("mode", "all")
    if why and experiment.strict in refuses:
        problems.append(f"shapes.gears: {why}.")
    if problems:
        raise ConfigError(*problems)
    return [Effective(option="shapes.gears", requested=dict(gears), effective=None, why=why)] if why else []


def _other_gears(sizes: Sequence[int]) -> str:
    """` write [2, 4].` when the sizes that can be gears are enough."""
    possible = [size for size in sizes if size >= 2]
    return f": write {possible}." if 2 <= len(possible) <= 100 else "."


def _merged(experiment: Experiment) -> list[str]:
    """TorchAir pairs the gears of several dimensions (zip) or crosses them (product): at most 100 come out."""
    gears = experiment.shapes.gears
    counts = [len(sizes) for sizes in gears.values()]
    where = "compiler.inference_config.dynamic_gears_merge_policy"
    if experiment.compiler["inference_config.dynamic_gears_merge_policy"] == "product":
        if math.prod(counts) > 100:
            return [
                f"shapes.gears makes {math.prod(counts)} combinations with {where}=product; at most 100 are possible."
            ]
    elif len(set(counts)) > 1:
        return [f"shapes.gears gives {counts} sizes, and {where}=zip pairs them: give each dimension as many."]
    return []


def _eager(experiment: Experiment, passes: Sequence[tuple[str, Pass]]) -> list[Effective]:
    """The baseline compiles nothing, so that a sweep over modes may carry the same passes and plan."""
    if experiment.mode.name != "eager":
        return []
    return [
        Effective(option=f"passes.{label}", requested=p.name, effective=None, why="mode=eager compiles nothing")
        for label, p in passes
    ]


def _fused(experiment: Experiment, target: Target, passes: Sequence[tuple[str, Pass]]) -> list[Effective]:
    """Inductor schedules by itself: a plan is validated and its scopes are taken out again."""
    if not target.support(experiment.mode.name).fuses:
        return []
    return [
        Effective(
            option=f"passes.{label}",
            requested=f"streams={experiment.streams.name}",
            effective="one stream",
            why="the plan was validated and its scopes stripped: Inductor schedules the fused graph by itself",
        )
        for label, p in passes
        if p.name == "stream_plan"
    ]


def _cores(experiment: Experiment, target: Target) -> list[Effective]:
    """Limits of a plan's streams on a device that has none."""
    streams, mode = experiment.streams, experiment.mode.name
    if mode == "eager" or target.capabilities(mode).core_limits:
        return []
    why = f"limits of cores have no meaning on target={target.name} in mode={mode}"
    limited = [(f"streams.plan[{at}].cores", entry.cores) for at, entry in enumerate(streams.plan) if entry.cores]
    if limited and experiment.strict == "all":
        raise ConfigError(*(f"{option}: {why}." for option, _ in limited))
    return [Effective(option=option, requested=asdict(cores), effective=None, why=why) for option, cores in limited]


def _idle(experiment: Experiment, target: Target, passes: Sequence[tuple[str, Pass]]) -> list[Effective]:
    """Passes that need what the mode has not (an error) or the device has not (listed)."""
    mode = experiment.mode.name
    if mode == "eager":
        return []
    can = target.capabilities(mode)
    problems: list[str] = []
    found: list[Effective] = []
    for label, p in passes:
        illegal = p.acts_in is not None and mode not in p.acts_in
        if illegal:
            instead = f"; {p.elsewhere}" if p.elsewhere else ""
            why = f"it does not act in mode={mode}; it acts in: {listed(p.acts_in or ())}{instead}"
        elif p.uses is not None and not getattr(can, p.uses):
            why = f"it has no meaning on target={target.name} in mode={mode}"
        else:
            continue
        if experiment.strict == "all" or (illegal and experiment.strict == "mode"):
            problems.append(f"passes.{label}: {why}.")
        found.append(Effective(option=f"passes.{label}", requested=p.name, effective=None, why=why))
    if problems:
        raise ConfigError(*problems)
    return found
