"""Scopes around the kernels that a match finds: what core_limit and super_kernel share. Knows no attribute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Match

if TYPE_CHECKING:
    from torch import fx

OnNoMatch = Literal["error", "warn"]


@frozen(kw_only=True, eq=False)
class Run:
    """Kernels of one region that stand one after the other, with no other kernel and no edge of a scope between."""

    region: int
    kernels: tuple[fx.Node, ...]


def runs(graph: fx.Graph, matches: Sequence[Match], *, where: str, on_no_match: OnNoMatch = "error") -> list[Run]:
    """The runs in graph order; a kernel belongs to the first region that matches it.

    Raises ConfigError where there is no region, and for every region that finds no kernel (with `warn` a warning).
    `where` is the path of the list.
    """
    from npucompose.graphs import Dependence
    from npucompose.graphs.matching import matches as fits
    from npucompose.graphs.scopes import control

    if not matches:
        raise ConfigError(f"{where} needs an entry: which operators are meant.")
    kernels = frozenset(Dependence.from_graph(graph).kernels)
    found: list[Run] = []
    inside: list[fx.Node] = []
    at: int | None = None
    for node in graph.nodes:
        edge = control(node) in ("scope_enter", "scope_exit") or node.op == "output"
        if not edge and node not in kernels:
            continue
        region = None if edge else next((n for n, match in enumerate(matches) if fits(match, node)), None)
        if at is not None and region != at:
            found.append(Run(region=at, kernels=tuple(inside)))
            inside = []
        at = region
        if region is not None:
            inside.append(node)
    _tell_missing(graph, matches, {run.region for run in found}, kernels, where, on_no_match)
    return found


def _tell_missing(
    graph: fx.Graph,
    matches: Sequence[Match],
    found: set[int],
    kernels: frozenset[fx.Node],
    where: str,
    on_no_match: OnNoMatch,
) -> None:
    import warnings

    from npucompose.graphs.matching import why_none

    ordered = [node for node in graph.nodes if node in kernels]
    others = [node for node in graph.nodes if node not in kernels]
    problems = [
        f"{where}[{number}].match ({match}) finds no kernel: {why_none(match, ordered, others)}"
        for number, match in enumerate(matches)
        if number not in found
    ]
    if problems and on_no_match == "error":
        raise ConfigError(*problems)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)


def enclose(graph: fx.Graph, found: Sequence[Run], told: Callable[[Run], dict[str, str]], can: Capabilities) -> int:
    """Put scope_enter with `told(run)` before each run and scope_exit behind it; says how many kernels stand inside."""
    import torch

    operators: Any = getattr(torch.ops, can.scope_namespace)
    for run in found:
        attributes = told(run)
        with graph.inserting_before(run.kernels[0]):
            enter = graph.call_function(operators.scope_enter.default, (list(attributes), list(attributes.values())))
        with graph.inserting_after(run.kernels[-1]):
            leave = graph.call_function(operators.scope_exit.default, ())
        enter.meta["val"] = leave.meta["val"] = None
    return sum(len(run.kernels) for run in found)
