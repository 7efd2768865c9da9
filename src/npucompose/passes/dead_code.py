"""Removes what nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class DeadCode(Pass):
    """Remove calls whose result nobody reads, and then what only they read.

    before:  a = relu(x);  b = mm(a, a);  r = rand([2]);  return x + 1
    after:   r = rand([2]);  return x + 1

    Kept: inputs, whatever writes memory, has a side effect or is unknown, and operators that draw random numbers
    (without `r` a later draw would get other numbers). A removed call can no longer raise (an index out of range,
    say). A graph with stream scopes stays as it is: its records stand behind calls that may be dead.
    """

    name: ClassVar[str] = "dead_code"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs.effects import is_removable
        from npucompose.graphs.scopes import is_planned

        if is_planned(graph):
            return 0
        dead = [node for node in reversed(graph.nodes) if not node.users and is_removable(node)]
        removed = 0
        while dead:
            node = dead.pop()
            inputs = node.all_input_nodes
            graph.erase_node(node)
            removed += 1
            dead += [source for source in inputs if not source.users and is_removable(source)]
        return removed
