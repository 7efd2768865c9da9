"""`npucompose compare-dumps EAGER GRAPH`: the first operator of a graph whose result is beyond its contract."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence

import attrs

from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.results.artefacts import FxListing, Tensors, read_artefact
from npucompose.results.measured import NumericTolerance
from npucompose_devtools.accuracy.compare import DumpComparison, OperatorResult, Question, compared, declared

SHOWN = 8
INPUTS: Mapping[str, str] = {
    "same bits": "its inputs have the same bits, so that the difference is its own",
    "within": "its inputs are within tolerance and not the same: what they differ by may have grown here",
    "beyond": "an input is beyond tolerance already: what makes it is not in both dumps",
    "statistics agree": "its inputs agree as far as statistics show",
    "another shape": "an input has another shape: what makes it is not in both dumps",
    "not dumped": "its inputs are not in both dumps",
}


def act(arguments: argparse.Namespace) -> int:
    """0 where every result is within its contract, 1 where one is not, 2 where nothing can be compared."""
    eager, graph = _dump(arguments.eager), _dump(arguments.graph)
    question = Question(
        rules=_rules(arguments.adapt), listings=tuple(_listings(arguments.listing)), dtype=arguments.dtype
    )
    found = compared(eager, graph, question)
    if not found.pairs:
        raise ConfigError(
            f"{found.eager} and {found.graph} have no operator in common, by name or by its number of calls: "
            f"{len(found.only_eager)} and {len(found.only_graph)} operators. Dump both with the same tool and level."
        )
    if not found.agreements.keys() - {"not dumped"}:
        raise ConfigError(
            f"{found.eager} and {found.graph} have no result of one operator in common: dump outputs, too."
        )
    print(json.dumps(attrs.asdict(found), indent=2) if arguments.json else "\n".join(_lines(found)))
    return 0 if found.holds else 1


def _dump(path: str) -> Tensors:
    tensors = read_artefact(path).tensors
    if tensors is None:
        raise ConfigError(f"{path} is no dump of an operator's tensors: give the folder of one step.")
    return tensors


def _listings(paths: Sequence[str]) -> Iterator[FxListing]:
    for path in paths:
        found = read_artefact(path).listings
        if not found:
            raise ConfigError(f"{path} is no FX graph that torch printed (GraphModule.print_readable).")
        yield from found


def _rules(adapt: str | None) -> Mapping[str, NumericTolerance]:
    return {} if adapt is None else declared(check(compose([f"adapt={adapt}"])).experiment.adapt)


def _lines(found: DumpComparison) -> Iterator[str]:
    how = f"{found.by_name} by name" + (
        f", {found.pairs - found.by_name} by their order" if found.by_name < found.pairs else ""
    )
    yield f"{found.eager} (eager) and {found.graph} (graph): {found.pairs} operators in both, {how}"
    yield "compared: " + ", ".join(f"{count} {agreement}" for agreement, count in found.agreements.items())
    if found.first is None:
        yield "every result is within its contract"
    else:
        yield from _first(found.first)
    if found.largest is not None:
        one = found.largest
        yield f"the largest difference within a contract: {one.error or 0:.3g} at {one.name} ({one.operator})"
    yield from _alone("eager", found.only_eager)
    yield from _alone("the graph", found.only_graph)


def _first(one: OperatorResult) -> Iterator[str]:
    other = f", in eager {one.eager}" if one.eager != one.name else ""
    yield f"first beyond its contract: {one.name} ({one.operator}){other}"
    yield from (f"  {problem}" for problem in one.problems)
    yield f"  {INPUTS[one.inputs]}"
    if one.source is not None:
        yield f"  {one.source}"
    if one.made_by is not None:
        yield f"  made by the pass {one.made_by}"


def _alone(where: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"only in {where}: {', '.join(names[:SHOWN])}{more}"
