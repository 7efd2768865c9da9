"""What `compile.training`, `compile.cache` and an export need, and where there is no such thing."""

from __future__ import annotations

from collections.abc import Sequence

from npucompose.errors import ConfigError
from npucompose.schema.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.leaf import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets.base import Target

JOINT = "experimental_config.aot_config_enable_joint_graph"
EXPORT = "export.export_mode"
FROZEN = "experimental_config.frozen_parameter"


def compile_keys(experiment: Experiment, target: Target) -> tuple[Effective, ...]:
    """Requests of `compile` that do not act here; ConfigError for those that the mode or `strict` refuses."""
    problems: list[str] = []
    found = [*_training(experiment, target, problems), *_cache(experiment, target, problems)]
    _export(experiment, target, problems)
    if problems:
        raise ConfigError(*problems)
    return tuple(found)


def _training(experiment: Experiment, target: Target, problems: list[str]) -> list[Effective]:
    mode, strict = experiment.mode.name, experiment.strict
    if not experiment.compile.training:
        if experiment.compiler[JOINT] and mode in (GE, ACLGRAPH):
            problems.append(f"compiler.{JOINT}=true compiles forward and backward as one: write compile.training=true.")
        return []
    if not {"benchmark", "ablation", "modes"}.isdisjoint(experiment.pipeline.stages):
        problems.append("compile.training=true is compared with eager and not measured: write pipeline=check.")
    if mode == "eager" or target.support(mode).trains:
        return []
    captured = mode in (ACLGRAPH, NPUGRAPH_EX)
    why = (
        f"compile.training does not act in mode={mode}, whose recordings are for inference; it acts in: {GE}"
        if captured
        else f"compile.training has no meaning on target={target.name}"
    )
    return _judged("training", why, strict, ("mode", "all") if captured else ("all",), problems)


def _cache(experiment: Experiment, target: Target, problems: list[str]) -> list[Effective]:
    mode, compile = experiment.mode.name, experiment.compile
    if not compile.cache:
        return []
    if compile.training:
        problems.append("compile.cache=true has no backward: TorchAir caches graphs for inference. Remove one.")
    if not compile.fullgraph:
        problems.append("compile.cache=true caches one whole graph: write compile.fullgraph=true.")
    if experiment.compiler[EXPORT]:
        problems.append(f"compile.cache=true and compiler.{EXPORT}=true: a graph is run or exported. Remove one.")
    if mode == "eager":
        return _judged("cache", "mode=eager compiles nothing", experiment.strict, (), problems)
    if target.support(mode).caches:
        return []
    why = f"compile.cache has no meaning on target={target.name} in mode={mode}"
    if target.name == "npu_offline":
        why = (
            f"compile.cache in mode={mode} needs target=npu: a cached GE graph comes without the FX graph that the "
            "stand-in runs in its place"
        )
    return _judged("cache", why, experiment.strict, ("all",), problems)


def _judged(key: str, why: str, strict: str, refused_by: Sequence[str], problems: list[str]) -> list[Effective]:
    if strict in refused_by:
        problems.append(f"{why}.")
    return [Effective(option=f"compile.{key}", requested=True, effective=False, why=why)]


def _export(experiment: Experiment, target: Target, problems: list[str]) -> None:
    """Where no graph is exported the option itself is illegal or listed: see `schema.legality`."""
    if not experiment.compiler[EXPORT] or not target.support(experiment.mode.name).exports:
        return
    beyond = [stage for stage in experiment.pipeline.stages if stage != "compile"]
    if beyond:
        problems.append(
            f"compiler.{EXPORT}=true writes the graph and runs nothing: {', '.join(beyond)} cannot follow. "
            "Write pipeline=export."
        )
    if experiment.compile.training:
        problems.append(f"compiler.{EXPORT}=true exports graphs for inference: remove compile.training=true.")
    if experiment.compiler[FROZEN]:
        problems.append(f"compiler.{FROZEN}=true cannot be exported: an exported graph has no addresses. Remove it.")
    if getattr(target, "decompose", ()):
        problems.append("target.decompose has no place in an export: dynamo_export takes no decompositions. Remove it.")
