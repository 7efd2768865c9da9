"""Parts of a graph held to promises of their own: one application of a rule, one place of a pattern."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import define, field
from torch import fx

from npucompose.errors import PassError
from npucompose.graphs import fingerprint
from npucompose.passes.proof import Promise, prove


def part(inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.GraphModule:
    """Some nodes of a graph as a module of their own: `inputs` come in, `results` come out."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        known[node] = graph.placeholder(node.name)
        known[node].meta["val"] = node.meta.get("val")
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[result] for result in results))
    return fx.GraphModule(torch.nn.Module(), graph)


@define
class PartProofs:
    """`hold` for every rewritten place of a pass; equal places are compared once."""

    errors: dict[str, float] = field(factory=dict)
    """{rule or pattern: its largest difference on random inputs}."""
    _known: set[tuple[str, str]] = field(factory=set)

    def hold(self, name: str, where: str, before: fx.GraphModule, after: fx.GraphModule, promise: Promise) -> None:
        """PassError with `where` in it where `after` is further from `before` than the promise allows."""
        form = (name, fingerprint(before.graph))
        if form in self._known:
            return
        self._known.add(form)
        proof = prove(before, after, promise)
        if proof.broken is not None:
            raise PassError(f"{where}: {proof.broken}")
        self.errors[name] = max(self.errors.get(name, 0.0), proof.max_abs_err)
