"""Changes to a graph that keep what a caller can see of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from npucompose.graphs import Aliases
from npucompose.graphs.form import same_form
from npucompose.passes.cancel_moves.moves import CONTIGUOUS, Perm, is_identity, is_move, perm_of, source_of
from npucompose.passes.metadata import fake_mode_of, fake_result, inherited
from npucompose.passes.outputs import Visible

aten = torch.ops.aten


class Editor:
    """One walk's view of a graph; `changed` counts what was done."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.aliases = Aliases.of(graph)
        self.visible = Visible(graph, self.aliases)
        self.changed = 0
        self._born: set[fx.Node] = set()

    def quiet(self, *nodes: fx.Node) -> bool:
        """Nobody writes the memory of these."""
        if not self.aliases.written:
            return True
        known = [memory for node in nodes if (memory := self._memory(node)) is not None]
        return self.aliases.written.isdisjoint(self.aliases.of_all(known))

    def call(
        self, before: fx.Node, like: fx.Node, target: Any, *args: Any, value: Any = None, **kwargs: Any
    ) -> fx.Node:
        """A new node in front of `before` with the origin of `like`; `value` is its fake value where it is known."""
        with self.graph.inserting_before(before):
            made = self.graph.call_function(target, args, kwargs)
        made.meta.update(inherited(like))
        made.meta["val"] = fake_result(target, args, kwargs, fake_mode_of(like)) if value is None else value
        self._born.add(made)
        return made

    def permuted(self, before: fx.Node, like: fx.Node, source: fx.Node, perm: Perm) -> fx.Node:
        """`source` in that order: itself where the order is its own."""
        return source if is_identity(perm) else self.call(before, like, aten.permute.default, source, list(perm))

    def may_stand_for(self, kept: fx.Node, gone: fx.Node) -> bool:
        """`gone` can be replaced by `kept`: same form, and nobody can tell that they are one memory."""
        if not same_form(kept.meta.get("val"), gone.meta.get("val")):
            return False
        mine, other = self._memory(kept), self._memory(gone)
        if kept in self.visible.outputs and gone in self.visible.outputs:
            return False
        if mine is None or other is None:
            return True
        return self.quiet(mine, other) and self.visible.may_join(mine, other)

    def stand_for(self, kept: fx.Node, gone: fx.Node) -> None:
        """Replace `gone` by `kept`, after `may_stand_for`."""
        mine, other = self._memory(kept), self._memory(gone)
        if mine is not None and other is not None:
            self.visible.join(mine, other)
        if gone in self.visible.outputs:
            self.visible.outputs.add(kept)
        self.replace(gone, kept)

    def _memory(self, node: fx.Node) -> fx.Node | None:
        """The node of the graph as it was whose memory a node is; None for memory that was made since."""
        while node in self._born:
            if perm_of(node) is None:
                return None
            node = source_of(node)
        return node

    def replace(self, gone: fx.Node, by: fx.Node) -> None:
        gone.replace_all_uses_with(by)
        self.changed += 1
        self.sweep([gone])

    def sweep(self, nodes: Sequence[fx.Node]) -> None:
        """Erase moves that nobody reads any more, and those that only they read."""
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node.users or node._erased or not is_move(node):
                continue
            source = source_of(node)
            self.graph.erase_node(node)
            todo.append(source)

    def laid_down(self, before: fx.Node, node: fx.Node) -> fx.Node:
        return self.call(before, node, aten.clone.default, node, memory_format=CONTIGUOUS)
