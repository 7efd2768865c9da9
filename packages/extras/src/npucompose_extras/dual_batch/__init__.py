"""Splits a batch in two inside a graph, so that one half's communication lies beside the other half's compute.

`rows.py` says which operators work row by row, `split.py` writes them twice. Sources: "dual batch overlap" (DBO) of
vLLM's design documents and "two-batch overlap" (TBO) of SGLang, after the two micro-batches with which DeepSeek-V3
hides its all-to-all (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, 3.4). Those run the model's Python twice, on
two threads or in two coroutines; here the graph holds both halves, and a stream plan lays them beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.passes.base import Constants, Outcome, Pass, Request
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx

    from npucompose.graphs import Aliases
    from npucompose_extras.dual_batch.rows import Batch
    from npucompose_extras.dual_batch.split import Region

SHOWN = 3
"""Places where the region ends that a record names."""


@frozen(kw_only=True)
class DualBatchOverlap(Pass):
    """Compute the two halves of a batch by themselves, for a stream plan to lay beside each other.

    before:  h = mm(x, w);  s = wait_tensor(all_reduce(h));  return relu(s)
    after:   x0 = x[:4];  x1 = x[4:];  h0 = mm(x0, w);  h1 = mm(x1, w);  a0 = all_reduce(h0);  a1 = all_reduce(h1)
             s0 = wait_tensor(a0);  …;  return cat([relu(s0), relu(s1)])

    While a0 is on the link, h1 is computed. Weights are shared, an odd batch gives unequal halves. It goes as far as
    operators work row by row: what reduces, sorts or views over the batch, draws random numbers, writes memory, takes
    statistics of the batch (batch norm in training) or is unknown reads both halves put together. A batch of one and
    symbolic sizes are left alone. Products of half a batch may round in another way: unless every operator of the
    region keeps bits, the results are promised within the tolerance of their dtype.

    Twice as many kernels pay only where something lies beside something: a graph is split where that is predicted to
    save `streams.min_gain` of the time (0: always). The record says what was done, or why nothing.
    """

    name: ClassVar[str] = "dual_batch_overlap"
    exact: ClassVar[bool] = False
    skips_planned: ClassVar[bool] = True
    after: ClassVar[tuple[str, ...]] = ("adapt", "cancel_moves", "cse", "dead_code", "remove_noop", "replace")
    before: ClassVar[tuple[str, ...]] = ("stream_plan", "core_limit", "super_kernel")

    input: str | None = option(
        None, "the input whose rows are split, by its name in the graph; null: chosen by the pass"
    )
    dim: int = option(0, "the batch dimension of the inputs", ge=0)
    streams: Streams = option(factory=Streams, doc="the plan that the halves are for", from_experiment="streams")

    def run(self, request: Request) -> Outcome:
        return self._split(request.graph_module.graph, request.can, request.constants)

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> Outcome:
        return self._split(graph, can, {})

    def _split(self, graph: fx.Graph, can: Capabilities, constants: Constants) -> Outcome:
        from npucompose.graphs import Dependence
        from npucompose_extras.dual_batch.split import split

        found = self._largest(graph, constants)
        if isinstance(found, str):
            return Outcome(matches=0, why=found)
        region, halved = found
        count = len(region.kernels(Dependence.from_graph(graph)))
        times = self._times(graph, halved, can)
        why = ""
        if times is not None:
            gain = 1 - times[1] / times[0] if times[0] else 0.0
            why = f", predicted {times[1]:.1f} µs against {times[0]:.1f} µs"
            if self.streams.min_gain and gain < self.streams.min_gain:
                return Outcome(
                    matches=0,
                    why=f"{count} kernels could be halved{why}: the gain of {gain:.1%} is below streams.min_gain "
                    f"{self.streams.min_gain:.1%}",
                )
        exact = region.keeps_bits(graph)
        split(graph, region)
        sizes = f"{(region.items + 1) // 2} and {region.items // 2}"
        return Outcome(
            matches=count,
            exact=exact,
            why=f"{count} kernels for {sizes} of {region.items} rows{why}{_ends(region)}",
        )

    def source_files(self) -> tuple[str, ...]:
        return self.streams.files

    def _largest(self, graph: fx.Graph, constants: Constants) -> tuple[Region, fx.Graph] | str:
        """The region with the most kernels, with a copy of the graph in which it is halved; or why there is none."""
        from npucompose.graphs import Dependence
        from npucompose_extras.dual_batch.split import aliases_of

        best: tuple[int, Region, fx.Graph] | None = None
        aliases, needed = aliases_of(graph), Dependence.from_graph(graph)
        refusals: list[str] = []
        for seeds in self._seeds(graph, constants, refusals):
            region, halved = _fitting(graph, seeds, aliases)
            count = len(region.kernels(needed))
            if count < 2:
                refusals += region.ends or (f"no kernel reads '{next(iter(seeds)).name}' row by row",)
            elif best is None or count > best[0]:
                best = (count, region, halved)
        if best is None:
            return "nothing to split: " + (
                "; ".join(refusals[:SHOWN]) or f"no input has rows along dimension {self.dim}"
            )
        return best[1], best[2]

    def _seeds(self, graph: fx.Graph, constants: Constants, refusals: list[str]) -> Iterator[Mapping[fx.Node, Batch]]:
        """The inputs that may hold a batch, those of one size together."""
        import torch

        from npucompose_extras.dual_batch.rows import Batch

        inputs = graph.find_nodes(op="placeholder")
        if self.input is not None and all(node.name != self.input for node in inputs):
            names = ", ".join(node.name for node in inputs)
            raise ConfigError(f"passes.dual_batch_overlap.input: the graph has no '{self.input}'. Its inputs: {names}.")
        groups: dict[int, dict[fx.Node, Batch]] = {}
        for node in inputs:
            value = node.meta.get("val")
            if node.name in constants or (self.input is not None and node.name != self.input):
                continue
            if not isinstance(value, torch.Tensor) or value.dim() <= self.dim:
                continue
            size = value.shape[self.dim]
            if not isinstance(size, int):
                refusals.append(f"the size of '{node.name}' is a symbol")
            elif size < 2:
                refusals.append(f"'{node.name}' is a batch of {size}")
            else:
                groups.setdefault(size, {})[node] = Batch(self.dim)
        yield from groups.values()

    def _times(self, whole: fx.Graph, halved: fx.Graph, can: Capabilities) -> tuple[float, float] | None:
        """(predicted µs of the graph as it is, of the graph in halves), each with its own plan; None: nobody knows."""
        from npucompose.streams import predicted_us

        if self.streams.cost == "none":
            return None
        wanted = self.streams
        if wanted.kind != "none":  # a plan that a person wrote names nodes of one of the two graphs
            wanted = attrs.evolve(wanted, kind="auto", plan=(), edges=(), max_memory=None)
        return predicted_us(whole, wanted, can), predicted_us(halved, wanted, can)


def _fitting(graph: fx.Graph, seeds: Mapping[fx.Node, Batch], aliases: Aliases) -> tuple[Region, fx.Graph]:
    """The region that can be put together again, and a copy of the graph in which it is halved.

    Where the halves of a call would lie otherwise in memory than the whole, that call is left whole.
    """
    from npucompose.passes.proof import copied
    from npucompose_extras.dual_batch.split import Misplaced, aliases_of, region_of, split

    left: frozenset[str] = frozenset()
    while True:
        copy = copied(graph).graph
        named = {node.name: node for node in copy.nodes}
        own = {named[node.name]: batch for node, batch in seeds.items()}
        try:
            split(copy, region_of(copy, own, aliases_of(copy), frozenset(named[name] for name in left)))
        except Misplaced as found:
            left |= {str(found)}
            continue
        banned = frozenset(node for node in graph.nodes if node.name in left)
        return region_of(graph, seeds, aliases, banned), copy


def _ends(region: Region) -> str:
    if not region.ends:
        return ""
    more = f" and {len(region.ends) - SHOWN} more" if len(region.ends) > SHOWN else ""
    return f"; whole again for {', '.join(region.ends[:SHOWN])}{more}"
