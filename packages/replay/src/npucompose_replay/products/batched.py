"""Batched products of float32 matrices, which oneDNN may compute: see onednn.py.

# Note [Matrices that are constants]
Where the second matrices are constants, Inductor's template has them packed when it compiles, and multiplies without
the setting up of a library: 16 rows by four of 256x256 take 43 us on a Zen 5, oneDNN's product 73, ATen's 136. Inductor
chooses between its template and ATen; a third way it cannot be told of.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import fx
from torch._inductor import config as inductor_config

from npucompose.schema.recording import LinearLibrary
from npucompose_replay.products import onednn
from npucompose_replay.products.onednn import Candidate, layout_of
from npucompose_replay.products.winners import Winners


@frozen(kw_only=True, eq=False)
class Batched(Candidate):
    """`bmm(x, y)`."""

    @property
    def form(self) -> str:
        """`bmm_4x16x256x64`: matrices, rows, inner size, columns; with `_turned` where the second is transposed."""
        (((matrices, rows, inner), _), ((_, _, columns), (_, along, across))) = self.layouts
        turned = "_turned" if along == 1 and across != 1 else ""
        return f"bmm_{matrices}x{rows}x{inner}x{columns}{turned}"

    @property
    def work(self) -> int:
        (((matrices, rows, inner), _), (second, _)) = self.layouts
        return 2 * matrices * rows * inner * second[2]

    @property
    def has_constants(self) -> bool:
        """For its second matrices."""
        second = self.node.args[1]
        return isinstance(second, fx.Node) and second.op == "get_attr"

    def by_aten(self, *operands: torch.Tensor) -> torch.Tensor:
        return torch.bmm(*operands)

    def by_onednn(self, *operands: torch.Tensor) -> torch.Tensor:
        return torch.ops.air.onednn_bmm(*operands)

    def move(self) -> None:
        self.node.target = torch.ops.air.onednn_bmm.default


def choose_batched(
    graph_module: fx.GraphModule, library: LinearLibrary = "auto", winners: Winners | None = None
) -> int:
    """Give the batched products of a graph to the faster library; how many went to oneDNN.

    See Note [Matrices that are constants].
    """
    winners = winners or Winners()
    templates = library == "auto" and (inductor_config.max_autotune or inductor_config.max_autotune_gemm)
    found = [
        one for one in batched(graph_module) if not (templates and one.has_constants) or one.form in winners.pinned
    ]
    return onednn.choose(graph_module, found, library, winners)


def batched(graph_module: fx.GraphModule) -> list[Batched]:
    """The products of float32 matrices on the CPU whose sizes are numbers; of vectors (one row or column) none, which
    Inductor does not compute as products."""
    found: list[Batched] = []
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.ops.aten.bmm.default or node.kwargs:
            continue
        x, y = map(layout_of, node.args)
        if x is not None and y is not None and x[0][1] > 1 and y[0][2] > 1:
            found.append(Batched(node=node, layouts=(x, y)))
    return found
