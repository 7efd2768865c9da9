"""Which requests do not take effect, and whether that is an error: strict off | mode | all.

- strict=off: everything runs; what has no effect is listed.
- strict=mode: what the *mode* cannot honour is an error; what has no meaning on the *target*, or waits for a switch
  that is off, is listed, so that one YAML serves the laptop and the NPU.
- strict=all: what would only be listed is an error too.
In a mode that compiles nothing options are listed and not refused: it is the baseline of experiments that do set them.

An option's own `Acts` says where it acts; the rules below say what goes with what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from attrs import asdict

from npucompose.compose.legality_case import (
    ALWAYS,
    NEVER,
    STRICT,
    STRICTEST,
    LegalityCase,
    Objection,
    Rule,
    idle,
    judged,
    why_idle,
)
from npucompose.errors import listed
from npucompose.passes.base import Pass
from npucompose.passes.scopes import CoreLimit
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.streams import DEFAULT_GE_POLICY
from npucompose.table.modes import EAGER, MODES, modes_that
from npucompose.table.options import Acts
from npucompose.targets.base import Target
from npucompose.targets.vendor_compiled import VendorCompiled
from npucompose.vendor import devices, inductor
from npucompose.vendor.compiler import BARE_STRATEGY, GE_STREAMS, beside_ge, idle_options, uncompiled
from npucompose.vendor.devices import soc_of
from npucompose.vendor.option_specs import shown

AICORE_NUM = "ge_config.aicore_num"
EXPORT = "export.export_mode"
FROZEN = "experimental_config.frozen_parameter"
GEARS_MERGED = "inference_config.dynamic_gears_merge_policy"
JOINT = "experimental_config.aot_config_enable_joint_graph"
TILING_SINK = "experimental_config.tiling_schedule_optimize"


def effective_options(
    experiment: Experiment, target: Target, passes: Sequence[tuple[str, Pass]]
) -> tuple[Effective, ...]:
    """Every request that does not take effect as asked, with the reason; ConfigError where `strict` refuses it."""
    return judged(RULES, LegalityCase(experiment=experiment, target=target, passes=passes))


# Where an option acts, as its field says.


def _acting(section: str, asked: LegalityCase) -> Iterator[Objection]:
    """Every option of a section that says where it acts, where it does not."""
    return _idle_fields(section, getattr(asked.experiment, section), asked)


def _installed(asked: LegalityCase) -> Iterator[Objection]:
    """The same for the sections of installed packages."""
    for name, holder in asked.experiment.extensions.named.items():
        yield from _idle_fields(f"extensions.{name}", holder, asked)


def _idle_fields(section: str, holder: Any, asked: LegalityCase) -> Iterator[Objection]:
    for field in attrs.fields(type(holder)):
        acts, value = field.metadata.get("acts"), getattr(holder, field.name)
        option = f"{section}.{field.name}"
        why, refused_by = why_idle(acts, option, asked) if acts is not None and value else ("", NEVER)
        if why:
            whole = isinstance(value, Mapping)
            given, instead = (dict(value), None) if whole else (value, False)
            sentence = f"{option}: {why}." if whole or not asked.mode.compiles else f"{why}."
            yield idle(option, given, why, refused_by, effective=instead, sentence=sentence)


# Options of the compilers.


def _compiler(asked: LegalityCase) -> Iterator[Objection]:
    """TorchAir's options, whose table says where each acts."""
    options, mode = asked.experiment.compiler, asked.mode.name
    for path, why, refused_by in idle_options(options, mode, asked.target.name, asked.target.support(mode).options):
        sentence = f"{why} (strict=all)" if refused_by == STRICTEST else why
        default = options.default(path)
        yield idle(f"compiler.{path}", options[path], why, refused_by, effective=default, sentence=sentence)


def _uncompiled(asked: LegalityCase) -> Iterator[Objection]:
    """Options with which TorchAir compiles nothing: the mode itself, and what acts only on a compiled graph."""
    options, mode, target = asked.experiment.compiler, asked.mode.name, asked.target
    way = uncompiled(options, mode) if isinstance(target, VendorCompiled) else None
    if way is None:
        return
    yield idle("mode.name", mode, way.why(options), STRICTEST, effective=EAGER)
    why = f"TorchAir compiles nothing with {way.switch(options)}"
    listed_already = {path for path, *_ in idle_options(options, mode, target.name, target.support(mode).options)}
    for path, value in options.changed().items():
        if path not in listed_already and not way.leaves(path, options):
            yield idle(f"compiler.{path}", value, why, STRICTEST)
    if asked.experiment.compile.cache and not (way.passes and asked.mode.captures):
        yield idle("compile.cache", True, why, STRICTEST, effective=False)
    for label, p in () if way.passes else asked.passes:
        yield idle(f"passes.{label}", p.name, why, STRICTEST)


def _overridden(asked: LegalityCase) -> Iterator[Objection]:
    if isinstance(asked.target, VendorCompiled):
        for one in asked.target.overrides(asked.mode.name, asked.experiment.compiler):
            yield Objection(refused_by=NEVER, sentence="", idle=one)


DEVICE_OF: Mapping[str, str] = {
    "triton": "cuda", "cutlass": "cuda", "cuda": "cuda", "rocm": "another GPU", "xpu": "another GPU",
    "mtia": "another device", "halide": "another compiler",
}  # fmt: skip
"""{group of Inductor's options: the device it needs}; all others act on the CPU, on a GPU for what the host runs."""
FREEZING = ("freezing", "frozen_weights", "cpp.weight_prepack")


def _inductor(asked: LegalityCase) -> Iterator[Objection]:
    for path, value in asked.experiment.inductor.changed().items():
        why, refused_by = _why_not_inductor(path, asked)
        if why:
            option = f"{inductor.WHERE}.{path}"
            yield idle(option, value, why, refused_by, sentence=f"{option}={shown(value)} {why}.")


def _why_not_inductor(path: str, asked: LegalityCase) -> tuple[str, tuple[str, ...]]:
    mode, can = asked.mode, asked.target.capabilities(asked.mode.name)
    if not mode.compiles:
        return f"has no effect: {mode.name} compiles nothing", NEVER
    if not mode.fuses:
        where = listed(modes_that("fuses"))
        return f"has no effect in mode={mode.name}, which does not use Inductor; it takes effect in: {where}", STRICT
    if not asked.can("fuses"):
        return f"has no meaning on target={can.target}, whose compiler is not Inductor", STRICTEST
    elsewhere = DEVICE_OF.get(path.partition(".")[0])
    if elsewhere not in (None, can.device.partition(":")[0]):
        return f"has no meaning on target={can.target}; it takes effect on {elsewhere}", STRICTEST
    if path in FREEZING and asked.experiment.compile.training:
        return "has no effect: weights that are trained cannot be constants", STRICTEST
    if path == "frozen_weights" and not asked.experiment.inductor.settings().get("freezing"):
        return "has no effect: inductor.freezing is off, and no weight is frozen", STRICT
    if path == "replay" and not asked.can("replays_fused"):
        return f"has no meaning on target={can.target}, which does not record what Inductor makes", STRICTEST
    return "", NEVER


# Passes and plans.


def _passes(asked: LegalityCase) -> Iterator[Objection]:
    """Passes that need what the mode has not (an error) or the device has not (listed)."""
    mode = asked.mode.name
    for label, p in asked.passes:
        why, refused_by = "", STRICTEST
        if not asked.mode.compiles:
            why, refused_by = f"mode={mode} compiles nothing", NEVER
        elif p.acts_in is not None and mode not in p.acts_in:
            instead = f"; {p.elsewhere}" if p.elsewhere else ""
            why, refused_by = (
                f"it has no effect in mode={mode}; it takes effect in: {listed(p.acts_in)}{instead}",
                STRICT,
            )
        elif p.uses is not None and not getattr(asked.target.capabilities(mode), p.uses):
            why = f"it has no meaning on target={asked.target.name} in mode={mode}"
        if why:
            yield idle(f"passes.{label}", p.name, why, refused_by)


def _stripped_plans(asked: LegalityCase) -> Iterator[Objection]:
    """Inductor schedules by itself: a plan is validated and its scopes are taken out again."""
    why = "the plan was validated and its scopes stripped: Inductor schedules the fused graph by itself"
    streams = f"streams={asked.experiment.streams.name}"
    for label, p in asked.passes if asked.can("fuses") else ():
        if p.name == "stream_plan":
            yield idle(f"passes.{label}", streams, why, NEVER, effective="one stream")


def _unfollowed_streams(asked: LegalityCase) -> Iterator[Objection]:
    """A plan, or options of one, that no pass reads."""
    streams = asked.experiment.streams
    changed = attrs.evolve(streams, name="auto") != type(streams)() and streams.kind != "none"
    if changed and asked.mode.compiles and not any(_reads(p, "streams") for _, p in asked.passes):
        yield idle("streams", streams.name, "no pass follows it; passes=stream_plan does", STRICTEST)


def _reads(p: Pass, section: str) -> bool:
    return any(f.name == section and f.metadata.get("from_experiment") for f in attrs.fields(type(p)))


CORES = Acts(can="core_limits", words="limits of cores")


def _core_limits(asked: LegalityCase) -> Iterator[Objection]:
    """Limits of a plan's streams, and cores divided between streams, on a device that has no limits."""
    if asked.mode.compiles and asked.experiment.streams.split_cores:
        why, refused_by = why_idle(CORES, "streams.split_cores", asked)
        if why:
            yield idle("streams.split_cores", True, why, refused_by, effective=False)
    for at, entry in enumerate(asked.experiment.streams.plan if asked.mode.compiles else ()):
        option = f"streams.plan[{at}].cores"
        why, refused_by = why_idle(CORES, option, asked)
        if why and entry.cores:
            yield idle(option, asdict(entry.cores), why, refused_by)


def _ge_streams(asked: LegalityCase) -> Iterator[Objection]:
    """What depends on GE's version, which only the host knows, and what `streams.objective=ge` has of what GE does."""
    if not asked.mode.ge:
        return
    value = asked.experiment.compiler[GE_STREAMS]
    option = f"compiler.{GE_STREAMS}"
    if value == BARE_STRATEGY:
        why = (
            "GE up to CANN 9.1 takes it without a number and chooses one; since 2026-08 GE refuses it: write "
            f"{BARE_STRATEGY}:N, N from 1 to 64"
        )
        yield idle(option, value, why, STRICTEST, sentence=f"{option}={value}: {why}.")
    streams = asked.experiment.streams
    why = beside_ge(value, streams.ge_policy) if streams.objective == "ge" else ""
    if why:
        yield idle("streams.objective", "ge", why, NEVER, effective=streams.ge_policy)


def _ge_policy(asked: LegalityCase) -> Iterator[Objection]:
    streams = asked.experiment.streams
    if streams.objective != "ge" and streams.ge_policy != DEFAULT_GE_POLICY:
        yield idle("streams.ge_policy", streams.ge_policy, "it takes effect with streams.objective=ge only", STRICT)


# What the device that `target.soc` names has not. Asks no driver.


def _device(asked: LegalityCase) -> Iterator[Objection]:
    """Cores that are not there are errors everywhere, a capture on what captures nothing where the vendor's compiler
    runs; on other targets, which only ask about the device, that is listed, and so is tiling that stays on the host.
    """
    device = soc_of(asked.target.soc)
    if device is None:
        return
    mode, product, title = asked.mode, device.product, f"{device.name} ({device.product.title})"
    for where, aicore, vectorcore in _cores_asked_for(asked):
        if lacks := device.model().lacks(aicore, vectorcore):
            named = f"{lacks.replace(', nominal', '')} ({devices.WHERE}={asked.experiment.target.options.get('soc')})"
            yield Objection(ALWAYS, f"{where} asks for {aicore} cube and {vectorcore} vector cores; {named}.")
    if mode.captures and product.captures is False:
        runs = ", ".join(one.name for one in MODES.every().values() if not one.captures)
        why = f"{title} captures no graphs: aclmdlRICaptureBegin is not supported there; modes that run on it: {runs}"
        refused_by = STRICT if asked.can("vendor_compiler") else STRICTEST
        yield idle("mode", mode.name, why, refused_by, sentence=f"mode={mode.name}: {why}.")
    if mode.ge and asked.experiment.compiler[TILING_SINK] and product.sinks is False:
        option = f"compiler.{TILING_SINK}"
        why = f"{title} cannot compute tiling on the device: {product.source}"
        yield idle(option, True, why, STRICTEST, effective=False, sentence=f"{option}=true: {why}.")


def _cores_asked_for(asked: LegalityCase) -> Iterator[tuple[str, int, int]]:
    """(where, cube cores, vector cores) of every limit that the configuration names, however it is said."""
    for label, one in asked.passes:
        for at, region in enumerate(one.regions if isinstance(one, CoreLimit) else ()):
            yield f"passes.{label}.regions[{at}]", region.aicore, region.vectorcore
    for at, entry in enumerate(asked.experiment.streams.plan):
        if entry.cores is not None:
            yield f"streams.plan[{at}].cores", entry.cores.aicore, entry.cores.vectorcore
    whole = asked.experiment.compiler[AICORE_NUM]
    if whole is not None:
        aicore, _, vectorcore = str(whole).partition("|")
        yield f"compiler.{AICORE_NUM}", int(aicore), int(vectorcore)


# What goes with what, wherever it runs: errors whatever `strict` says.


def _gears(asked: LegalityCase) -> Iterator[Objection]:
    gears = asked.experiment.shapes.gears
    for key, sizes in gears.items():
        if not 2 <= len(sizes) <= 100 or min(sizes) < 2:
            possible = [size for size in sizes if size >= 2]
            instead = f": write {possible}" if 2 <= len(possible) <= 100 else ""
            sentence = f"shapes.gears '{key}' takes 2 to 100 sizes of at least 2 (torch makes 0 and 1 constants)"
            yield Objection(ALWAYS, f"{sentence}; given {list(sizes)}{instead}.")
    # TorchAir pairs the gears of several dimensions (zip) or crosses them (product): at most 100 come out.
    counts = [len(sizes) for sizes in gears.values()]
    where, made = f"compiler.{GEARS_MERGED}", math.prod(counts)
    crossed = asked.experiment.compiler[GEARS_MERGED] == "product"
    if crossed and made > 100:
        sentence = f"shapes.gears makes {made} combinations with {where}=product; at most 100 are possible."
        yield Objection(ALWAYS, sentence)
    elif not crossed and len(set(counts)) > 1:
        sentence = f"shapes.gears gives {counts} sizes, and {where}=zip pairs them: give each dimension as many."
        yield Objection(ALWAYS, sentence)


Conflicts = tuple[tuple[Callable[[LegalityCase], Any], str], ...]
"""(whether two requests are at odds, what is said then)."""

GEAR_CONFLICTS: Conflicts = (
    (
        lambda a: a.experiment.shapes.gears and a.experiment.shapes.dynamic is not True,
        "shapes.gears needs dynamic shapes: write shapes=dynamic.",
    ),
    (
        lambda a: a.experiment.shapes.gears and not a.experiment.compile.fullgraph,
        "shapes.gears needs one whole graph: write compile.fullgraph=true.",
    ),
)
CONFLICTS: Conflicts = (
    (
        lambda a: not a.experiment.compile.training and a.experiment.compiler[JOINT] and a.mode.package == "torchair",
        f"compiler.{JOINT}=true compiles forward and backward as one: write compile.training=true.",
    ),
    (
        lambda a: (
            a.experiment.compile.training and {"benchmark", "ablation", "modes"} & {*a.experiment.pipeline.stages}
        ),
        "compile.training=true is compared with eager and not measured: write pipeline=check.",
    ),
    (
        lambda a: a.experiment.compile.cache and a.experiment.compile.training,
        "compile.cache=true has no backward: TorchAir caches graphs for inference. Remove one.",
    ),
    (
        lambda a: a.experiment.compile.cache and not a.experiment.compile.fullgraph,
        "compile.cache=true caches one whole graph: write compile.fullgraph=true.",
    ),
    (
        lambda a: a.experiment.compile.cache and a.experiment.compiler[EXPORT],
        f"compile.cache=true and compiler.{EXPORT}=true: a graph is run or exported. Remove one.",
    ),
    (
        lambda a: _exports(a) and a.experiment.compile.training,
        f"compiler.{EXPORT}=true exports graphs for inference: remove compile.training=true.",
    ),
    (
        lambda a: _exports(a) and a.experiment.compiler[FROZEN],
        f"compiler.{FROZEN}=true cannot be exported: an exported graph has no addresses. Remove it.",
    ),
    (
        lambda a: _exports(a) and getattr(a.target, "decompose", ()),
        "target.decompose has no place in an export: dynamo_export takes no decompositions. Remove it.",
    ),
)


def _exports(asked: LegalityCase) -> bool:
    """Where no graph is exported the option itself is illegal or listed."""
    return bool(asked.experiment.compiler[EXPORT]) and asked.can("exports")


def _at_odds(conflicts: Conflicts, asked: LegalityCase) -> Iterator[Objection]:
    return (Objection(ALWAYS, sentence) for at_odds, sentence in conflicts if at_odds(asked))


def _nothing_runs(asked: LegalityCase) -> Iterator[Objection]:
    beyond = [stage for stage in asked.experiment.pipeline.stages if stage != "compile"]
    if beyond and _exports(asked):
        yield Objection(
            ALWAYS,
            f"compiler.{EXPORT}=true writes the graph and runs nothing: {', '.join(beyond)} cannot follow. "
            "Write pipeline=export.",
        )


COMPILE_RULES: tuple[Rule, ...] = (partial(_at_odds, CONFLICTS), _nothing_runs, partial(_acting, "compile"))
GEAR_RULES: tuple[Rule, ...] = (_gears, partial(_at_odds, GEAR_CONFLICTS), partial(_acting, "shapes"))
COMPILER_RULES: tuple[Rule, ...] = (_uncompiled, _compiler, _overridden)
PASS_RULES: tuple[Rule, ...] = (_core_limits, _stripped_plans, _unfollowed_streams, _passes)
DEVICE_RULES: tuple[Rule, ...] = (_device, _ge_streams, _ge_policy)
INDUCTOR_RULES: tuple[Rule, ...] = (_inductor,)
RULES: tuple[Rule, ...] = (
    *COMPILER_RULES, *GEAR_RULES, *PASS_RULES, *DEVICE_RULES, *COMPILE_RULES, *INDUCTOR_RULES, _installed,
)  # fmt: skip
