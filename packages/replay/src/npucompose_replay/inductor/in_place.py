"""Updates in place that Inductor would make copies for: the caches of a model are written where they lie.

AOTAutograd makes `cache.scatter_(…)` functional, and Inductor takes that back where it can
(torch/_inductor/fx_passes/reinplace.py): for `index_put` and for scatters over views, and not for `scatter`, which is a
clone of the cache, a write into the clone and a copy back. In place again it is the write alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from npucompose_replay.capture import updates

aten = torch.ops.aten

LOWERED = frozenset(
    {aten.scatter_.src, aten.scatter_.value, aten.scatter_add_.default, aten.scatter_reduce_.two},
)
"""In-place operators that Inductor makes kernels of and leaves to others to ask for."""


class ScatterInPlace(CustomGraphPass):
    """Inductor's hook before it takes updates back itself, when its other passes are done with functional graphs."""

    def __init__(self, key: str = "") -> None:
        self._key = key

    def __call__(self, graph: fx.Graph) -> None:
        scatter_in_place(graph)

    def uuid(self) -> str:
        """Part of the key of Inductor's cache, with what else shall be one."""
        return f"npucompose_replay.inductor.in_place: 1 {self._key}"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Before torch 2.9 the key is made of copies of all settings."""
        return str, (self.uuid(),)


def scatter_in_place(graph: fx.Graph) -> int:
    """Undo such pairs of a scatter and its copy back; how many there were.

    before:  new = scatter(cache, 2, index, key);  copy_(cache, new);  return f(new)
    after:   new = scatter_(cache, 2, index, key);  return f(new)

    Inputs that overlap do not come here: AOTAutograd makes one input of them where one is written.
    """
    found = updates.find(graph, frozenset())
    copies = {copy.args[1]: copy for copy in found.dropped}
    undone = [(node, op) for node, op in found.in_place.items() if op in LOWERED]
    for node, op in undone:
        copy = copies[node]
        copy.replace_all_uses_with(node)
        graph.erase_node(copy)
        node.target = op
    return len(undone)
