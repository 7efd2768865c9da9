"""`npucompose sizes budget DEPLOYMENT.yaml`: what the captures of a server take, from a description of its graphs.

For models that nobody can trace here. The file is data, and somebody else may have written it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import load_yaml
from npucompose.npu.capture.budget import (
    BudgetQuestion,
    CaptureBudget,
    CapturedGraph,
    CommunicatorGroup,
    ExpansionMode,
    Interval,
    capture_budget,
)
from npucompose.schema.sizes import as_number
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose_devtools.capture_sizes.planner import sizes_for
from npucompose_devtools.capture_sizes.trace import Trace

MOST = 1_000
"""Sizes, and layers of a graph that many times; graphs and communicators are fewer than 65."""


@frozen(kw_only=True)
class _Graph:
    layers: int = option(1, ge=1, le=100 * MOST)
    pieces: bool = option(False)
    merged: int = option(1, ge=1, le=MOST)
    streams: int = option(1, ge=1, le=MOST)
    kernels: tuple[int, ...] = option(factory=tuple, doc="of one layer: one number, or the least and the most")
    events: int = option(0, ge=0, le=100 * MOST)
    shared_events: bool = option(False)
    collectives: int | None = option(None, ge=0, le=MOST, optional=True)
    communicators: tuple[str, ...] = option(factory=tuple)
    sizes: tuple[int, ...] = option(factory=tuple, ge=1)


@frozen(kw_only=True)
class _Communicator:
    ranks: int = option(ge=1, le=100 * MOST)
    expansion: ExpansionMode | None = option(None)


@frozen(kw_only=True)
class _File:
    """A file as it stands."""

    about: str = option("")
    soc: str = option()
    sizes: tuple[int, ...] = option(ge=1)
    graphs: Mapping[str, _Graph] = option()
    communicators: Mapping[str, _Communicator] = option(factory=dict)
    many_streams: bool | None = option(None)
    memory: str | None = option(None)
    bytes: Mapping[int, str] = option(factory=dict)


def act(arguments: argparse.Namespace) -> int:
    """0 whatever the answer is; exit status 2 and a paragraph for a file that describes nothing."""
    found = capture_budget(read_deployment(arguments.deployment))
    facts, lines = as_dict(found), [*found.lines()]
    if arguments.trace is not None:
        trace = Trace.from_csv(arguments.trace)
        chosen = sizes_for(trace, found)
        facts["of_trace"] = {"sizes": list(chosen.sizes), "padding": chosen.padding}
        sizes, share = ", ".join(map(str, chosen.sizes)), trace.share(chosen.padding)
        lines.append(f"of trace    {sizes} pad least, {share:.2%} of all rows, among as many as certainly fit")
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(lines))
    return 0


def read_deployment(path: Path) -> BudgetQuestion:
    """ConfigError with the place of each mistake."""
    data = load_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path} describes no deployment: it has to be a mapping with `soc`, `sizes` and `graphs`.")
    try:
        return _question(structure(_File, data, ""))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None


def _question(file: _File) -> BudgetQuestion:
    many = [len(file.sizes), *(len(graph.sizes) for graph in file.graphs.values())]
    if max(many) > MOST or max(len(file.graphs), len(file.communicators)) > MOST // 16:
        raise ConfigError(f"at most {MOST:,} sizes, and {MOST // 16} graphs and communicators.")
    taken = {size: _number("bytes", text) for size, text in file.bytes.items()}
    return BudgetQuestion(
        soc=file.soc,
        graphs=tuple(_graph(name, graph) for name, graph in file.graphs.items()),
        sizes=file.sizes,
        communicators=tuple(
            CommunicatorGroup(name=name, ranks=one.ranks, expansion=one.expansion)
            for name, one in file.communicators.items()
        ),
        many_streams=file.many_streams,
        nbytes={size: Interval(number, number) for size, number in taken.items()},
        memory=None if file.memory is None else _number("memory", file.memory),
    )


def _graph(name: str, graph: _Graph) -> CapturedGraph:
    if len(graph.kernels) > 2 or sorted(graph.kernels) != list(graph.kernels) or min(graph.kernels, default=0) < 0:
        raise ConfigError(f"graphs.{name}.kernels: one number, or the least and the most.")
    return CapturedGraph(
        name=name,
        layers=graph.layers,
        pieces=graph.pieces,
        merged=graph.merged,
        streams=graph.streams,
        tasks=Interval(graph.kernels[0], graph.kernels[-1]) if graph.kernels else None,
        events=graph.events,
        shared_events=graph.shared_events,
        collectives=graph.collectives,
        communicators=graph.communicators,
        sizes=graph.sizes or None,
    )


def _number(where: str, text: str) -> int:
    number = as_number(text)
    if number is None:
        raise ConfigError(f"{where}: {text!r}; must be a number of bytes with its unit, as in 512MiB.")
    return number


def as_dict(budget: CaptureBudget) -> dict[str, Any]:
    """For programs; an end that nobody knows is null."""
    return attrs.asdict(budget, value_serializer=lambda _, __, value: None if value == math.inf else value)
