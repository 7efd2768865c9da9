"""Which operators work row by row, and where their results have the rows: one line for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from test_dual_batch import MIXED, PER_ROW, X, weights
from torch.nn import functional as F

from npucompose_extras.dual_batch.rows import Batch, Found, MixesRows, PerRow, per_row
from tests.sample_graphs import traced

ROWS = X.shape[0]
ONES = torch.ones
MORE: dict[str, Callable[[torch.Tensor], Any]] = {
    "products over and beside the batch": lambda x: (
        torch.mm(x.view(7, 24), ONES(24, 2)), torch.mm(x.view(7, 24).t(), ONES(7, 2)),
        torch.mm(ONES(2, 24), x.view(7, 24).t()), torch.mm(ONES(2, 7), x.view(7, 24)),
        torch.mm(x.view(7, 24), x.view(7, 24).t()), torch.mv(x.view(7, 24), ONES(24)),
        torch.mv(x.view(7, 24).t(), ONES(7)), torch.mv(ONES(2, 7), x.view(7, 24)[:, 0]),
    ),
    "sums with a product": lambda x: (
        torch.addmm(ONES(2), x.view(7, 24), ONES(24, 2)), torch.addmm(ONES(7, 2), x.view(7, 24), ONES(24, 2)),
        torch.addmm(ONES(1, 2), x.view(7, 24), ONES(24, 2)), torch.addmm(x.view(7, 24), ONES(7, 3), ONES(3, 24)),
        torch.addmm(x[:, 0, :2], x.view(7, 24), ONES(24, 2)),
        torch.addmm(x[:, 0, 0].view(1, 7), ONES(2, 24), x.view(7, 24).t()),
        torch.addmm(x.view(168)[:14].view(7, 2).t(), ONES(2, 24), x.view(7, 24).t()),
    ),
    "products of batches": lambda x: (
        torch.bmm(x, ONES(7, 6, 2)), torch.bmm(ONES(7, 2, 4), x), torch.bmm(x.transpose(0, 1), ONES(4, 6, 2)),
        torch.bmm(ONES(4, 2, 6), x.permute(1, 2, 0)), torch.bmm(x.transpose(0, 1), x.permute(1, 2, 0)),
        torch.bmm(x.permute(1, 2, 0), ONES(4, 7, 2)), torch.bmm(ONES(4, 2, 7), x.transpose(0, 1)),
        torch.baddbmm(ONES(7, 4, 2), x, ONES(7, 6, 2)), torch.baddbmm(x[:, :, :2], x, ONES(7, 6, 2)),
        torch.baddbmm(x, ONES(7, 4, 3), ONES(7, 3, 6)), torch.baddbmm(ONES(4, 7, 2), x.transpose(0, 1), ONES(4, 6, 2)),
    ),
    "views": lambda x: (
        x.view(28, 6), x.view(7, 24), x.view(7, 2, 2, 6), x.view(168), x.view(1, 7, 24), x.view(14, 12), x.view(2, 84),
        x.transpose(0, 1).reshape(4, 42), x.transpose(0, 1).reshape(28, 6), x.permute(1, 2, 0).reshape(24, 7),
        x.view(28, 6).view(7, 4, 6), x.view(28, 6).view(56, 3), x.view(28, 6).view(4, 42), x.view(28, 6).t(),
    ),
    "other orders": lambda x: (
        x.permute(2, 0, 1), x.permute(-1, -2, -3), x.transpose(0, -1), x.transpose(1, 2), x[0, 0].t(), x[:, 0].t(),
        x[:, 0, 0].t(), x.unsqueeze(0), x.unsqueeze(1), x.unsqueeze(-1), x.unsqueeze(0).squeeze(0),
        x[:, :1].squeeze(), x[:, :1].squeeze(1), x[:, :1, :1].squeeze((1, 2)), x.unsqueeze(0).squeeze(-1),
        x.transpose(0, 1)[:1].squeeze(0), x.unsqueeze(0).expand(2, 7, 4, 6), x.expand(2, 7, 4, 6),
    ),
    "along a dimension": lambda x: (
        x[:, 1], x[1], x.transpose(0, 1)[1], x.select(-1, 0), x[1:3], x[:, 1:3], x.split(2, 1), x.split(2),
        x.unbind(1), x.unbind(0), x.transpose(0, 1).unbind(0), x.softmax(-1), x.softmax(0), x.cumsum(1), x.cumsum(-3),
        x.sort(), x.sort(0), x.topk(2), x.topk(2, 0), x.index_select(1, ONES(2).long()),
        ONES(7, 4).index_select(1, x[0, 0].long()),
    ),
    "reduced": lambda x: (
        x.sum(0), x.sum(1), x.sum(-1, keepdim=True), x.sum(), x.sum((1, 2)), x.sum((0, 1)), x.transpose(0, 1).sum(0),
        x.transpose(0, 1).sum(0, keepdim=True), x.transpose(0, 1).sum(-2), x.permute(1, 2, 0).sum((0, 1)), x.amax(),
        x.max(1), x.max(0), x.argmax(), x.argmax(-1), torch.var_mean(x, 1), x.logsumexp((1,)), x.any(), x.any(2),
    ),
    "put together": lambda x: (
        torch.cat([x, x]), torch.cat([x, ONES(7, 1, 6)], 1), torch.cat([ONES(7, 1, 6), x], 1),
        torch.cat([x, ONES(0)], 1), torch.stack([x, x]), torch.stack([x, x], 1), torch.stack([x, x], -1),
        torch.stack([x.transpose(0, 1), ONES(4, 7, 6)], 1), torch.cat([x.transpose(0, 1), ONES(4, 7, 6)], -1),
        torch.cat([x[:4], x.transpose(0, 1)[:, :4]], 2),
    ),
    "looked up": lambda x: (
        x.gather(1, ONES(7, 2, 6).long()), x.gather(0, ONES(2, 4, 6).long()), x.gather(1, ONES(3, 2, 6).long()),
        ONES(7, 4, 6).gather(2, x.long()), x.scatter(1, ONES(7, 2, 6).long(), 1.0),
        x.scatter(1, ONES(7, 2, 6).long(), ONES(7, 2, 6)), x.scatter(1, ONES(5, 2, 6).long(), ONES(7, 2, 6)),
        F.embedding(x.long(), ONES(9, 3)), F.embedding(ONES(2).long(), x[:, 0]),
    ),
    "normed, images, attention": lambda x: (
        F.layer_norm(x, (6,)), F.layer_norm(x, (4, 6)), F.layer_norm(x.transpose(0, 1), (6,)),
        F.layer_norm(x.transpose(0, 1), (7, 6)), F.layer_norm(ONES(2, 6), (6,), x[0, 0]),
        F.conv2d(x.unsqueeze(1), ONES(2, 1, 2, 2)), F.conv2d(x.unsqueeze(0), ONES(2, 7, 2, 2)),
        F.conv2d(ONES(1, 1, 4, 6), x[:, :2, :2].unsqueeze(1)), F.max_pool2d(x.unsqueeze(1), 2), F.max_pool2d(x, 2),
        F.avg_pool2d(x.unsqueeze(1), 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x.unsqueeze(1), (2, 2)),
        F.batch_norm(x, ONES(4), ONES(4)), F.batch_norm(x, ONES(4), ONES(4), training=True),
        F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3),
        F.scaled_dot_product_attention(x.unsqueeze(1), ONES(7, 1, 4, 6), ONES(7, 1, 4, 6)),
        F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3, ONES(7, 1, 4, 4)),
        F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3, ONES(1, 1, 4, 4)),
        F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3, ONES(4, 4)),
        F.scaled_dot_product_attention(*[x.unsqueeze(0)] * 3), F.dropout(x, 0.5), x + torch.rand(7, 4, 6),
    ),
    "element by element": lambda x: (
        x + ONES(6), x + ONES(7, 4, 6), x + ONES(7, 1, 1), x + ONES(1, 4, 6), x + ONES(2, 7, 4, 6), ONES(7, 4, 6) + x,
        x + x[:, :1], x[:, :1, :1] + x[:, 0, 0], torch.where(x > 0, x, ONES(7, 4, 6)), x + x[0], x * 2,
        x.masked_fill(ONES(7, 4, 6).bool(), 0.0), x.new_zeros(7), torch.zeros_like(x), x.to(torch.float64),
    ),
    "weights": lambda x: (x @ weights(), x.view(28, 6) @ weights(), weights() @ x.transpose(1, 2)),
}  # fmt: skip


def said(found: Found, shape: Any) -> str:
    if isinstance(found, tuple):
        return f"({', '.join('none' if one is None else said(one, None) for one in found)})"
    return f"dim {found.dim}" + (f", {found.rows} rows each" if found.rows != 1 else "")


def page(function: Callable[[torch.Tensor], Any]) -> list[str]:
    """Every call that reads the batch, in the graph's order; what mixes rows hands no batch on."""
    graph = traced(function, X).graph
    known: dict[Any, Found] = {}
    lines: list[str] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = Batch(0)
        if node.op != "call_function" or not any(source in known for source in node.all_input_nodes):
            continue
        if not isinstance(node.target, torch._ops.OpOverload):  # one of several results
            whole: Any = known[node.args[0]]
            if isinstance(whole, tuple) and whole[node.args[1]] is not None:
                known[node] = whole[node.args[1]]
            continue
        shapes = [tuple(source.meta["val"].shape) if isinstance(source.meta["val"], torch.Tensor) else "several"
                  for source in node.all_input_nodes]  # fmt: skip
        try:
            found: PerRow = per_row(node, known, ROWS)
        except MixesRows as error:
            lines.append(f"{node.target} {shapes}: {error}")
            continue
        known[node] = found.result
        sliced = "".join(f"; of {one.meta['val'].shape[batch.dim]} at dim {batch.dim} its own"
                         for one, batch in found.sliced.items())  # fmt: skip
        sizes = f"; its sizes in {found.sizes}" if found.sizes else ""
        lines.append(f"{node.target} {shapes}: {said(found.result, None)}{sliced}{sizes}")
    return lines


def test_where_the_rows_are_after_each_call(golden: Callable[[str, str], None]) -> None:
    mixed = {what: function for what, (function, _) in MIXED.items()}
    functions = {**PER_ROW, **mixed, **{f"more: {what}": function for what, function in MORE.items()}}
    pages = ["\n".join([f"# {what}", *page(function), ""]) for what, function in functions.items()]
    golden("passes/rows_of_batches.txt", "\n".join(pages))
