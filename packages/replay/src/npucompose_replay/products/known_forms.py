"""Operators in the forms that Inductor's patterns for oneDNN know, before weights are packed, and in faster and more
accurate ones.

# Note [Forms that Inductor packs and fuses]
Inductor packs the frozen weight of a convolution over two or three dimensions. One over a sequence it leaves to ATen,
which adds a dimension, hands it to oneDNN and has the weight put into oneDNN's order on every call. With the dimension
in the graph the weight is packed once.

Its pattern of GELU with a tanh, which oneDNN computes in passing, has x * x * x. What is written with `pow(x, 3)`, as
in GPT-2 of transformers, and which ATen computes in the same way, went to a kernel of its own, which took a third as
long as the product before it.
(torch/_inductor/fx_passes/mkldnn_fusion.py, torch 2.7 to 2.13.)

# Note [A tanh that is a sigmoid]
Where another library computes the product, Inductor computes GELU in a loop of its own, and the vectorised tanh that it
calls takes four times as long as a sigmoid (2 ns an element of one Xeon's core, and 0.5). 1 + tanh(z) is
2 / (1 + exp(-2 z)), for negative z without the cancellation.

# Note [Sums over rows]
Inductor adds the rows of a sum or a mean over another dimension than the innermost, as of a pooling over tokens, one to
the next in a register, and helps itself only above 4096 of them (`need_use_acc_helper`, torch 2.13). The error grows
with their number; of 200 rows it is 3 times that of eager. In parts of about as many rows as there are parts it grows
with the root of the number (as in Note [Sums in parts]).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

aten = torch.ops.aten
IN_PASSING = ("mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise")
"""oneDNN's products, which compute what follows them."""
BETWEEN = (aten.mul.Tensor, aten.add.Tensor, aten.view.default, aten.reshape.default, aten.squeeze.dim)
"""Of what a GELU is made, and what may stand between it and a product."""
SEQUENCE = 3
"""Dimensions of a convolution's input: batch, channels, length."""
Rewrite = Callable[[fx.Graph, fx.Node], bool]
"""Whether it rewrote the operator."""
SHORT, FEWEST_PARTS = 64, 4
"""A sum of fewer rows stays one, and one whose rows do not fall into so many parts of one size."""


def in_known_forms(graph_module: fx.GraphModule) -> int:
    """Rewrite what of a graph has another form, and sizes that are numbers; how many operators that were.

    Float32 on the CPU, with oneDNN only. The values stay what they were, but for the order of sums in a convolution.
    """
    if not torch.backends.mkldnn.is_available():
        return 0
    return _rewritten(graph_module, lambda graph, node: node.target in FORMS and FORMS[node.target](graph, node))


def without_tanh(graph_module: fx.GraphModule) -> int:
    """Write 1 + tanh(z) as twice a sigmoid where no product before it has a GELU computed in passing; how many.

    float32 on the CPU. See Note [A tanh that is a sigmoid].
    """
    return _rewritten(graph_module, _sigmoid)


def sums_in_two(graph_module: fx.GraphModule) -> int:
    """Write sums and means over rows as the sum of the sums of parts; how many. See Note [Sums over rows].

    float32 on the CPU, sizes that are numbers, one dimension that is not the innermost in memory.
    """
    return _rewritten(graph_module, _sum_in_two)


def _rewritten(graph_module: fx.GraphModule, rewrite: Rewrite) -> int:
    """How many operators `rewrite` has rewritten."""
    graph = graph_module.graph
    rewritten = sum(rewrite(graph, node) for node in list(graph.nodes) if node.op == "call_function")
    if rewritten:
        graph_module.recompile()
    return rewritten


def _sum_over_rows(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """(what a node adds up, over which dimension, in how many parts), if that is one that pays."""
    if node.target not in (aten.sum.dim_IntList, aten.mean.dim) or node.kwargs:
        return None
    rows, dimensions = node.args[:2]
    if not isinstance(rows, fx.Node) or not isinstance(dimensions, list) or len(dimensions) != 1 or not is_plain(rows):
        return None
    value, dimension = rows.meta["val"], dimensions[0]
    parts = None if value.dim() < 2 or value.stride(dimension) == 1 else _parts(value.shape[dimension])
    return None if parts is None else (rows, dimension % value.dim(), parts)


def _parts(size: int) -> int | None:
    """The divisor of `size` next to its root, from below."""
    if size < SHORT:
        return None
    divisor = next(one for one in range(math.isqrt(size), 0, -1) if size % one == 0)
    return divisor if divisor >= FEWEST_PARTS else None


def _sum_in_two(graph: fx.Graph, node: fx.Node) -> bool:
    found = _sum_over_rows(node)
    if found is None:
        return False
    rows, dimension, parts = found
    sizes = list(rows.meta["val"].shape)
    size = sizes[dimension]
    with graph.inserting_before(node):
        sizes[dimension : dimension + 1] = [parts, size // parts]
        inner = called(graph, aten.sum.dim_IntList, called(graph, aten.view.default, rows, sizes), [dimension + 1])
        made = called(graph, aten.sum.dim_IntList, inner, [dimension], *node.args[2:])
        replace(node, made if node.target is aten.sum.dim_IntList else called(graph, aten.div.Tensor, made, size))
    return True


def _sigmoid(graph: fx.Graph, node: fx.Node) -> bool:
    tanh = _one_and_tanh(node)
    if tanh is None or _is_computed_in_passing(tanh):
        return False
    with graph.inserting_before(node):
        half = called(graph, aten.sigmoid.default, called(graph, aten.mul.Tensor, tanh.args[0], 2.0))
        replace(node, called(graph, aten.mul.Tensor, half, 2.0))
    if not tanh.users:
        graph.erase_node(tanh)
    return True


def _one_and_tanh(node: fx.Node) -> fx.Node | None:
    """The tanh of a node that adds one to it."""
    if node.target is not aten.add.Tensor or node.kwargs or node.args[1] != 1:
        return None
    tanh = node.args[0]
    if not isinstance(tanh, fx.Node) or tanh.target is not aten.tanh.default:
        return None
    return tanh if is_plain(tanh) else None


def _is_computed_in_passing(tanh: fx.Node) -> bool:
    ahead, seen = list(tanh.all_input_nodes), set[fx.Node]()
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in IN_PASSING:
            return True
        if node.target in BETWEEN:
            ahead += node.all_input_nodes
    return False


def _convolution(graph: fx.Graph, node: fx.Node) -> bool:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    if transposed or not all(is_plain(part, SEQUENCE) for part in (x, weight)):
        return False
    given: list[Any] = [stride, padding, dilation, output_padding]
    over = [[more, *numbers] for more, numbers in zip((1, 0, 1, 0), given, strict=True)]
    with graph.inserting_before(node):
        wide = [called(graph, aten.unsqueeze.default, part, 2) for part in (x, weight)]
        made = called(graph, aten.convolution.default, *wide, bias, *over[:3], transposed, over[3], groups)
        replace(node, called(graph, aten.squeeze.dim, made, 2))
    return True


def _cube(graph: fx.Graph, node: fx.Node) -> bool:
    x, exponent = node.args
    if exponent != 3 or not is_plain(x):
        return False
    with graph.inserting_before(node):
        replace(node, called(graph, aten.mul.Tensor, called(graph, aten.mul.Tensor, x, x), x))
    return True


FORMS: dict[Any, Rewrite] = {aten.convolution.default: _convolution, aten.pow.Tensor_Scalar: _cube}


def is_plain(node: Any, dimensions: int | None = None) -> bool:
    """Whether it is a float32 tensor on the CPU whose sizes are numbers, of so many dimensions where that is said."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.device.type == "cpu"
        and dimensions in (None, value.dim())
        and all(type(size) is int for size in value.shape)
    )


def called(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    """A call of `op` where `graph` inserts, with its value in `meta["val"]`; `args` may hold nodes that have theirs."""
    node = graph.call_function(op, args)
    node.meta["val"] = op(*map_arg(args, lambda part: part.meta["val"]))
    return node


def replace(node: fx.Node, made: fx.Node) -> None:
    """Put `made` in the place of `node`, which is erased; it has the source of what it stands for."""
    made.meta = {**node.meta, "val": made.meta["val"]}
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
