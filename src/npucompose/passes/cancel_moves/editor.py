"""Changes to a graph that keep what a caller can see of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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

    def __init__(self, graph: fx.Graph, writes: bool) -> None:
        """`writes`: somebody in the graph writes memory."""
        self.graph, self.writes = graph, writes
        self.changed = 0
        self._born: set[fx.Node] = set()

    @cached_property
    def visible(self) -> Visible:
        """Made when somebody asks: it reads the whole graph, and most clean-ups of most graphs find nothing."""
        return Visible(self.graph, Aliases.of(self.graph))

    def quiet(self, *nodes: fx.Node) -> bool:
        """Nobody writes the memory of these."""
        if not self.writes:
            return True
        aliases = self.visible.aliases
        known = [memory for node in nodes if (memory := self._memory(node)) is not None]
        return aliases.written.isdisjoint(aliases.of_all(known))

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
        if (mine is None or other is None or mine is other) and not _is_output(gone):
            return True
        if kept in self.visible.outputs and gone in self.visible.outputs:
            return False
        if mine is None or other is None or mine is other:
            return True
        return self.quiet(mine, other) and self.visible.may_join(mine, other)

    def stand_for(self, kept: fx.Node, gone: fx.Node) -> None:
        """Replace `gone` by `kept`, after `may_stand_for`."""
        mine, other = self._memory(kept), self._memory(gone)
        if mine is not None and other is not None and mine is not other:
            self.visible.join(mine, other)
        if _is_output(gone):
            self.visible.outputs.add(kept)
        self.replace(gone, kept)

    def _memory(self, node: fx.Node) -> fx.Node | None:
        """The node of the graph as it was whose memory a node is; None for memory that was made since.

        Permutes are followed, because the fake value of one may still name the memory of a value that was replaced.
        """
        while perm_of(node) is not None:
            node = source_of(node)
        return None if node in self._born else node

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


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)
