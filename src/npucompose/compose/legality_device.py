"""What the device that `target.soc` names has not: cores, captures, tiling sink. Asks no driver.

Cores that are not there are errors everywhere, a capture on what captures nothing where TorchAir itself runs; on other
targets, which only ask about the device, that is listed, and so is tiling that stays on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npucompose.compose.torch_npu import RUN_THE_GENUINE
from npucompose.errors import ConfigError
from npucompose.passes.base import Pass
from npucompose.passes.core_limit import CoreLimit
from npucompose.schema import soc
from npucompose.schema.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.leaf import ACLGRAPH, GE, NPUGRAPH_EX, shown
from npucompose.schema.soc import Soc, soc_of
from npucompose.targets.base import Target

AICORE_NUM = "ge_config.aicore_num"
TILING_SINK = "experimental_config.tiling_schedule_optimize"


def device_limits(experiment: Experiment, target: Target, passes: Sequence[tuple[str, Pass]]) -> tuple[Effective, ...]:
    """What takes no effect on the SoC; ConfigError, which names the SoC, for what exceeds it."""
    device = soc_of(target.soc)
    if device is None:
        return ()
    problems = list(_cores(experiment, passes, device))
    captures, unsunk = tuple(_capture(experiment, device)), tuple(_tiling(experiment, device))
    illegal = captures if target.name in RUN_THE_GENUINE else ()
    idle = (*captures, *unsunk)
    refused = idle if experiment.strict == "all" else illegal
    problems += [f"{one.option}={shown(one.requested)}: {one.why}." for one in refused]
    if problems:
        raise ConfigError(*problems)
    return idle


def _cores(experiment: Experiment, passes: Sequence[tuple[str, Pass]], device: Soc) -> Iterator[str]:
    """Every limit of cores that the configuration names, however it is said."""
    asked = [
        (f"passes.{label}.regions[{at}]", region.aicore, region.vectorcore)
        for label, one in passes
        if isinstance(one, CoreLimit)
        for at, region in enumerate(one.regions)
    ]
    asked += [
        (f"streams.plan[{at}].cores", entry.cores.aicore, entry.cores.vectorcore)
        for at, entry in enumerate(experiment.streams.plan)
        if entry.cores is not None
    ]
    whole = experiment.compiler[AICORE_NUM]
    if whole is not None:
        aicore, _, vectorcore = str(whole).partition("|")
        asked.append((f"compiler.{AICORE_NUM}", int(aicore), int(vectorcore)))
    for where, aicore, vectorcore in asked:
        if why := device.model().lacks(aicore, vectorcore):
            yield f"{where} asks for {aicore} cube and {vectorcore} vector cores; {_named(why, experiment)}."


def _named(why: str, experiment: Experiment) -> str:
    return f"{why.replace(', nominal', '')} ({soc.WHERE}={experiment.target.options.get('soc')})"


def _capture(experiment: Experiment, device: Soc) -> Iterator[Effective]:
    mode = experiment.mode.name
    if mode in (ACLGRAPH, NPUGRAPH_EX) and device.product.captures is False:
        yield Effective(
            option="mode",
            requested=mode,
            effective=None,
            why=f"{device.name} ({device.product.title}) captures no graphs: aclmdlRICaptureBegin is not supported "
            f"there; modes that run on it: {GE}, eager",
        )


def _tiling(experiment: Experiment, device: Soc) -> Iterator[Effective]:
    """Also where no operator's tiling reads values: the option is on, and there it does nothing."""
    if experiment.mode.name == GE and experiment.compiler[TILING_SINK] and device.product.sinks is False:
        yield Effective(
            option=f"compiler.{TILING_SINK}",
            requested=True,
            effective=False,
            why=f"{device.name} ({device.product.title}) computes no tiling on the device: {device.product.source}",
        )
