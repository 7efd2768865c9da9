"""Attention of float32 heads, whose two products oneDNN may compute: see onednn.py.

torch's kernel (`aten::_scaled_dot_product_flash_attention_for_cpu`) goes through MKL block by block;
`air::onednn_attention` (replay/executor/src/attention.cpp) does the same by oneDNN.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from attrs import frozen
from torch import fx

from npucompose.schema.recording import LinearLibrary
from npucompose_replay.products import onednn
from npucompose_replay.products.onednn import Candidate, layout_of
from npucompose_replay.products.winners import Winners

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@frozen(kw_only=True, eq=False)
class Attention(Candidate):
    """A call of FLASH of which only the result is read; `layouts` are those of query, key, value and, if any, mask."""

    causal: bool
    scale: float

    @property
    def form(self) -> str:
        """`attention_1x6x1500x1500x64`: batch, heads, rows of the query and of the key, size of a head; with `_causal`
        and `_masked`."""
        (batch, heads, rows, size), columns = self.layouts[0][0], self.layouts[1][0][2]
        how = "_causal" * self.causal + "_masked" * (len(self.layouts) > 3)
        return f"attention_{batch}x{heads}x{rows}x{columns}x{size}{how}"

    @property
    def work(self) -> int:
        (batch, heads, rows, size), columns = self.layouts[0][0], self.layouts[1][0][2]
        return 4 * batch * heads * rows * columns * size

    def by_aten(self, *operands: torch.Tensor) -> torch.Tensor:
        query, key, value, *mask = operands
        return FLASH(query, key, value, 0.0, self.causal, attn_mask=_only(mask), scale=self.scale)[0]

    def by_onednn(self, *operands: torch.Tensor) -> torch.Tensor:
        query, key, value, *mask = operands
        return torch.ops.air.onednn_attention(query, key, value, _only(mask), self.causal, self.scale)

    def move(self) -> None:
        graph, given = self.node.graph, (*self.node.args[:3], self.node.kwargs.get("attn_mask"))
        for read in list(self.node.users):
            with graph.inserting_before(self.node):
                made = graph.call_function(torch.ops.air.onednn_attention.default, (*given, self.causal, self.scale))
            made.meta = dict(read.meta)
            read.replace_all_uses_with(made)
            graph.erase_node(read)
        graph.erase_node(self.node)


def _only(mask: list[torch.Tensor]) -> torch.Tensor | None:
    return mask[0] if mask else None


def choose_attention(
    graph_module: fx.GraphModule, library: LinearLibrary = "auto", winners: Winners | None = None
) -> int:
    """Give the attention of a graph to the faster library; how many calls went to oneDNN."""
    return onednn.choose(graph_module, attentions(graph_module), library, winners)


def attentions(graph_module: fx.GraphModule) -> list[Attention]:
    """The calls without dropout, of at least two rows, whose operands are float32 on the CPU and have numbers for
    sizes, as many heads of one size each."""
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function" and node.target is FLASH]
    return [found for node in calls if (found := _attention(node)) is not None]


def _attention(node: fx.Node) -> Attention | None:
    query, key, value, *rest = node.args
    dropout, causal = (*rest, *(0.0, False)[len(rest) :])
    mask, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    operands: list[Any] = [query, key, value, *([] if mask is None else [mask])]
    layouts = [layout for operand in operands if (layout := layout_of(operand)) is not None]
    reads_logsumexp = any(read.target is not operator.getitem or read.args[1] != 0 for read in node.users)
    if len(layouts) < len(operands) or dropout or reads_logsumexp or not isinstance(scale, float | None):
        return None
    (q, _), (k, _), (v, _) = layouts[:3]
    if q[2] < 2 or k != v or (q[0], q[1], q[3]) != (k[0], k[1], k[3]):
        return None
    return Attention(node=node, layouts=layouts, causal=bool(causal), scale=q[3] ** -0.5 if scale is None else scale)
