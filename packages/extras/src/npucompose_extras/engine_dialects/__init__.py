"""Dialects of the engines themselves: vLLM, read and written, and sglang on an NPU, written.

Facts only: what a key means is read from the version that each module names. Here is what they share: sizes of a batch
as a configuration lists them, and what of an experiment the options of an engine cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from npucompose.errors import ConfigError
from npucompose.schema.experiment import Experiment
from npucompose.vendor.option_specs import shown


def whole_sizes(name: str, said: Any) -> list[int]:
    """Ascending, each once; ConfigError for anything but whole numbers above 0, one or a list of them."""
    values = cast("list[Any]", said if isinstance(said, list) else [said])
    if not all(type(value) is int and value > 0 for value in values):
        raise ConfigError(f"{name}={shown(said)[:100]}: sizes are whole numbers above 0.")
    return sorted(set(values))


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
