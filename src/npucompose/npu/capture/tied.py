"""Which kernel of a captured graph belongs to which node of an FX graph, and so to which line of the model: where an
operator has as many kernels as nodes, and they lie in one queue, so that their order is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from npucompose.results.artefacts import CapturedGraph, CapturedKernel, FxListing, ListedNode, listed_nodes
from npucompose.streams.calibrated import SAME_KERNEL


def tied(graph: CapturedGraph, listings: tuple[FxListing, ...]) -> CapturedGraph:
    """The graph, its kernels with node and line. What is fused, computed in several kernels, or spread over streams
    stays without."""
    last = listings[-1:]  # what was captured is the graph after the last pass
    kernels = _by_operator(graph)
    nodes: dict[str, list[ListedNode]] = {}
    for node in listed_nodes(last):
        nodes.setdefault(_computes(node.operator), []).append(node)
    lines = {node.name: node.source for node in listed_nodes(listings) if node.source}
    found = dict(_pairs(kernels, nodes, _queues(graph)))
    return evolve(graph, kernels=tuple(_named(kernel, found.get(_place(kernel)), lines) for kernel in graph.kernels))


def _by_operator(graph: CapturedGraph) -> Mapping[str, list[CapturedKernel]]:
    kernels: dict[str, list[CapturedKernel]] = {}
    for kernel in graph.kernels:
        kernels.setdefault(kernel.computes or kernel.operator, []).append(kernel)
    return kernels


def _queues(graph: CapturedGraph) -> Mapping[int, int]:
    """{stream: the stream that its queue began on}."""
    before = {one.continues: one.stream for one in graph.streams if one.continues is not None}
    found: dict[int, int] = {}
    for one in graph.streams:
        at, seen = one.stream, {one.stream}
        while at in before and before[at] not in seen:
            at = before[at]
            seen.add(at)
        found[one.stream] = at
    return found


def _pairs(
    kernels: Mapping[str, Sequence[CapturedKernel]],
    nodes: Mapping[str, Sequence[ListedNode]],
    queues: Mapping[int, int],
) -> Iterator[tuple[tuple[int, int], ListedNode]]:
    for operator, of_one in kernels.items():
        wanted = nodes.get(operator, ())
        if len(wanted) == len(of_one) and len({queues[kernel.stream] for kernel in of_one}) == 1:
            yield from ((_place(kernel), node) for kernel, node in zip(of_one, wanted, strict=True))


def _named(kernel: CapturedKernel, node: ListedNode | None, lines: Mapping[str, str]) -> CapturedKernel:
    return kernel if node is None else evolve(kernel, node=node.name, source=node.source or lines.get(node.name))


def _place(kernel: CapturedKernel) -> tuple[int, int]:
    return kernel.stream, kernel.task


def _computes(operator: str) -> str:
    """`aten.addmm.default` as the kernel that computes it: "mm"."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return SAME_KERNEL.get(name, name)
