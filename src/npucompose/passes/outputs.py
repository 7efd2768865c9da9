"""Which rewrites would make an output share memory that it did not share before.

# Note [Outputs keep their aliases]
AOTAutograd decides before our passes which outputs are views of inputs or of one another, and its wrapper rebuilds
exactly that. A rewrite that makes two outputs, or an output and an input, one memory would let a caller's in-place
write reach the other. So a rewrite that joins two memories asks here first.
"""

from __future__ import annotations

from torch import fx

from npucompose.graphs import Aliases


class Visible:
    """What a caller can see of each memory, kept up to date while memories are joined.

    `may_join(a, b)` is asked before `b` is replaced by `a`; `join(a, b)` is told of it, or `merge(a, b)` does it. A
    view of `b` is a view of `a` from then on, so joined memories count as one.
    """

    def __init__(self, graph: fx.Graph, aliases: Aliases) -> None:
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self.aliases = aliases
        self.joined: dict[int, int] = {}
        self.outputs = set(output.all_input_nodes)
        self.seen_out = set(aliases.of_all(self.outputs))
        self.seen_in = set(aliases.of_all(node for node in graph.nodes if node.op in ("placeholder", "get_attr")))

    def may_join(self, kept: fx.Node, gone: fx.Node) -> bool:
        """Both handed out as they are: never. Otherwise joining is seen only where an output shares `gone`'s memory."""
        if gone in self.outputs and (kept in self.outputs or kept.op in ("placeholder", "get_attr")):
            return False
        mine, other = self._memory(kept), self._memory(gone)
        if mine == other or self.seen_out.isdisjoint(other):
            return True
        return self.seen_out.isdisjoint(mine) and self.seen_in.isdisjoint(mine)

    def join(self, kept: fx.Node, gone: fx.Node) -> None:
        if gone in self.outputs:
            self.outputs.add(kept)
        together = self._memory(kept) | self._memory(gone)
        if not together:
            return  # numbers lie nowhere
        root = min(together)
        for key in together - {root}:
            self.joined[key] = root
        for seen in (self.seen_out, self.seen_in):
            if not seen.isdisjoint(together):
                seen.add(root)

    def merge(self, kept: fx.Node, gone: fx.Node) -> None:
        """`kept` takes the place of `gone`, which leaves the graph."""
        self.join(kept, gone)
        gone.replace_all_uses_with(kept)
        gone.graph.erase_node(gone)

    def _memory(self, node: fx.Node) -> frozenset[int]:
        return frozenset(self._root(key) for key in self.aliases.keys[node])

    def _root(self, key: int) -> int:
        while key in self.joined:
            key = self.joined[key]
        return key
