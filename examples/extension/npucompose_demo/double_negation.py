"""A pass: takes out a negation of a negation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.sections import Extensions
from npucompose.table.options import option
from npucompose_demo.key import Tally

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class DoubleNegation(Pass):
    """Replace -(-x) by x.

    before:  y = neg(neg(x)) + 1
    after:   y = x + 1
    """

    name: ClassVar[str] = "double_negation"

    extensions: Extensions = option(factory=Extensions, doc="the section tally", from_experiment="extensions")

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        import torch

        neg = torch.ops.aten.neg.default
        twice = [n for n in graph.nodes if n.target is neg and getattr(n.args[0], "target", None) is neg]
        found = twice[: self.extensions.section(Tally).limit]
        for node in found:
            node.replace_all_uses_with(node.args[0].args[0])
            graph.erase_node(node)
        graph.eliminate_dead_code()
        return len(found)
