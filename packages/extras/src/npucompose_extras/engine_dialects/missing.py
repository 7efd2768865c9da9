"""What of an experiment the options of an engine cannot say: one line for each thing that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npucompose.schema.experiment import Experiment
from npucompose.vendor.option_specs import shown


def without_option(experiment: Experiment, why: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """{option, why} of passes, TorchAir's options, logs and the keywords of torch.compile; `why` has a reason for each:
    passes, compiler, inductor, fullgraph, logs. A kind that it leaves out is said elsewhere."""
    found = [("passes", f"passes.{label}") for label in experiment.passes]
    found += [("compiler", f"compiler.{path}={shown(value)}") for path, value in experiment.compiler.changed().items()]
    if experiment.mode.spec.fuses:
        values = experiment.inductor.changed().items()
        found += [("inductor", f"inductor.{path}={shown(value)}") for path, value in values]
    if not experiment.compile.fullgraph:
        found.append(("fullgraph", "compile.fullgraph=false"))
    if experiment.logs.artifacts or experiment.logs.levels:
        found.append(("logs", "logs"))
    return ({"option": option, "why": why[kind]} for kind, option in found if kind in why)
