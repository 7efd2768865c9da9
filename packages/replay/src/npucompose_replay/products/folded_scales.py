"""What multiplies and shifts the channels of a convolution with frozen weights, folded into these in double precision.

# Note [Scales folded in double precision]
In inference a batch norm is, channel by channel, a difference, two products and a sum. Inductor folds each of them into
the weight of the convolution before it, one after the other in float32 (torch/_inductor/fx_passes/binary_folding.py),
from a standard deviation in float32: the weight has been rounded some five times then, and a rounded weight is an error
of all results alike. Here all of them are one scale and one shift, worked out in double precision from the parameters,
so that weight and bias are rounded once. Freezing computes both when it folds constants: they cost a replay nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx
from torch._guards import TracingContext

from npucompose.targets.compilers import traced_weights
from npucompose_replay.products.known_forms import called, is_plain, replace

aten, prims = torch.ops.aten, torch.ops.prims
SCALED_BY = aten.mul.Tensor, aten.div.Tensor
CHANGED_BY = aten.add.Tensor, aten.sub.Tensor, *SCALED_BY
EITHER_WAY = aten.add.Tensor, aten.mul.Tensor
"""Whose operands may change places."""
WITH_CONSTANTS = frozenset(
    {*CHANGED_BY, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.unsqueeze.default}
    | {aten.view.default, aten.reshape.default, aten.squeeze.default, aten.squeeze.dim}
)
"""Of what the standard deviation of a batch norm is made, in all forms in which torch decomposes one."""
CONVERTED = prims.convert_element_type.default


def frozen_inputs(graph: fx.Graph) -> list[fx.Node]:
    """The placeholders that freezing will make constants of: parameters and buffers that the graph neither writes nor
    returns. None where no torch.compile is at work."""
    count = len(traced_weights(TracingContext.try_get()))
    return [node for node in graph.find_nodes(op="placeholder")[:count] if not any(map(_keeps, node.users))]


def _keeps(user: fx.Node) -> bool:
    return user.op == "output" or user.target is aten.copy_.default


def fold_scales(graph_module: fx.GraphModule, frozen: Collection[fx.Node]) -> int:
    """Fold what changes the channels of convolutions into their weights, which are `frozen`; how many had such.

    float32 on the CPU, sizes that are numbers; what is folded has no other reader. See Note [Scales folded in double
    precision].
    """
    graph, constants = graph_module.graph, _Constants(frozen)
    convolutions = graph.find_nodes(op="call_function", target=aten.convolution.default)
    folded = sum(_folded(graph, node, constants) for node in convolutions)
    if folded:
        graph_module.recompile()
    return folded


@define(eq=False)
class _Constants:
    """Nodes of float32 that depend on nothing but frozen inputs, once more in double precision."""

    frozen: Collection[fx.Node]
    _known: dict[fx.Node, bool] = field(factory=dict, init=False)
    _doubles: dict[fx.Node, fx.Node] = field(factory=dict, init=False)

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, fx.Node):
            return False
        if node not in self._known:
            made = (node.target in WITH_CONSTANTS or node.target is CONVERTED) and not node.kwargs
            of_constants = made and all(one in self for one in node.all_input_nodes)
            self._known[node] = is_plain(node) and (node in self.frozen or of_constants)
        return self._known[node]

    def double(self, node: fx.Node, graph: fx.Graph) -> fx.Node:
        """Made where `graph` inserts; what was made for another node stands before that."""
        if node not in self._doubles:
            self._doubles[node] = self._made(node, graph)
        return self._doubles[node]

    def _made(self, node: fx.Node, graph: fx.Graph) -> fx.Node:
        if node in self.frozen:
            return called(graph, CONVERTED, node, torch.float64)
        args: list[Any] = [self.double(arg, graph) if isinstance(arg, fx.Node) else arg for arg in node.args]
        return args[0] if node.target is CONVERTED else called(graph, node.target, *args)


def _changes(convolution: fx.Node, constants: _Constants) -> list[tuple[fx.Node, fx.Node]]:
    """(operator, what changes the channels), one after the other from the convolution on."""
    found: list[tuple[fx.Node, fx.Node]] = []
    value = convolution
    while len(value.users) == 1:
        (user,) = value.users
        if user.target not in CHANGED_BY or user.kwargs or not is_plain(user):
            break
        left, right = user.args
        by = right if left is value else left if user.target in EITHER_WAY else None
        if not isinstance(by, fx.Node) or by not in constants or not _is_of_channels(by, convolution):
            break
        found.append((user, by))
        value = user
    return found


def _is_of_channels(by: fx.Node, convolution: fx.Node) -> bool:
    """Whether it is one number for each channel: (channels, 1, …), or with a one before them."""
    _, channels, *spatial = convolution.meta["val"].shape
    wanted = [channels, *(1 for _ in spatial)]
    shape = list(by.meta["val"].shape)
    return shape == wanted or shape == [1, *wanted]


def _folded(graph: fx.Graph, convolution: fx.Node, constants: _Constants) -> bool:
    _, weight, bias, _, _, _, is_transposed, *_ = convolution.args
    if is_transposed or weight not in constants or (bias is not None and bias not in constants):
        return False
    changes = _changes(convolution, constants)
    if not any(user.target in SCALED_BY for user, _ in changes):
        return False
    with graph.inserting_before(convolution):
        made = _scaled(graph, convolution, changes, constants)
    *others, (last, _) = changes
    replace(last, made)
    for node in reversed([convolution, *(user for user, _ in others)]):
        graph.erase_node(node)
    return True


def _scaled(
    graph: fx.Graph, convolution: fx.Node, changes: Sequence[tuple[fx.Node, fx.Node]], constants: _Constants
) -> fx.Node:
    x, weight, bias, *how = convolution.args
    assert isinstance(weight, fx.Node)
    scale: fx.Node | None = None
    shift = constants.double(bias, graph) if isinstance(bias, fx.Node) else None
    channels, *spatial = convolution.meta["val"].shape[1:]
    for user, by in changes:
        change = called(graph, aten.view.default, constants.double(by, graph), [channels])
        if user.target in SCALED_BY:
            scale = _changed(graph, scale, user.target, change)
        if user.target not in SCALED_BY or shift is not None:
            shift = _changed(graph, shift, user.target, change)
    wide = called(graph, aten.view.default, scale, [channels, 1, *(1 for _ in spatial)])
    given = called(graph, aten.mul.Tensor, constants.double(weight, graph), wide), shift
    rounded = [None if one is None else called(graph, CONVERTED, one, torch.float32) for one in given]
    return called(graph, aten.convolution.default, x, *rounded, *how)


def _changed(graph: fx.Graph, value: fx.Node | None, how: Any, change: fx.Node) -> fx.Node:
    """None is a scale of one or a shift of nothing."""
    if value is not None:
        return called(graph, how, value, change)
    inverse = {aten.sub.Tensor: aten.neg.default, aten.div.Tensor: aten.reciprocal.default}.get(how)
    return change if inverse is None else called(graph, inverse, change)
