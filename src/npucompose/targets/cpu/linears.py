"""Who multiplies by a frozen float32 weight: oneDNN where it is faster on this machine, MKL elsewhere.

Freezing hands every such product to MKL's packed product. On processors that are not Intel's MKL may leave half of the
vector unit idle, and oneDNN does not (more than twice as fast on a Zen 5); which of the two it is is tried on
the weights themselves, as max-autotune tries its kernels. A product by oneDNN can also take in the pointwise operators
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

if TYPE_CHECKING:
    from torch import fx

FASTER = 0.95
"""A product moves to oneDNN if it takes at most this share of MKL's time."""
BUDGET_NS = 60e6
LEAST, MOST = 5, 60
"""Rounds of a trial: as many as fit the budget, within these."""


@frozen(kw_only=True, eq=False)
class Linear:
    """`mkl::_mkl_linear(x, packed, weight, bias, rows)` of a frozen graph, with the tensors that it names."""

    node: fx.Node
    packed: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: int

    @property
    def form(self) -> tuple[int, ...]:
        return self.rows, *self.weight.shape


def choose(graph_module: fx.GraphModule, library: Literal["auto", "mkl", "onednn"] = "auto") -> int:
    """Give the products of a frozen graph to the faster library, shape by shape; how many went to oneDNN."""
    if library == "mkl" or not torch.backends.mkldnn.is_available():
        return 0
    forms: dict[tuple[int, ...], list[Linear]] = {}
    for linear in linears(graph_module):
        forms.setdefault(linear.form, []).append(linear)
    moved = 0
    for alike in forms.values():
        with unset_fake_temporarily(), torch.no_grad():
            weights = [torch.ops.mkldnn._reorder_linear_weight(linear.weight, linear.rows) for linear in alike]
            faster = library == "onednn" or share(alike, weights) <= FASTER
        if faster:
            for linear, weight in zip(alike, weights, strict=True):
                _move(graph_module, linear, weight)
            moved += len(alike)
    if moved:
        graph_module.graph.eliminate_dead_code()
        _forget_unused(graph_module)
        graph_module.recompile()
    return moved


def linears(graph_module: fx.GraphModule) -> list[Linear]:
    """The products with MKL's packed weights whose operands are constants of the graph."""
    found: list[Linear] = []
    mkl = getattr(torch.ops.mkl, "_mkl_linear", None)
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or mkl is None or node.target not in (mkl, mkl.default):
            continue
        _, packed, weight, bias, rows = node.args
        if all(n is None or n.op == "get_attr" for n in (packed, weight, bias)):
            tensors: list[Any] = [
                None if n is None else getattr(graph_module, n.target) for n in (packed, weight, bias)
            ]
            found.append(Linear(node=node, packed=tensors[0], weight=tensors[1], bias=tensors[2], rows=rows))
    return found


def share(alike: Sequence[Linear], weights: Sequence[torch.Tensor]) -> float:
    """oneDNN's time as a share of MKL's: medians of rounds in turns, over all weights of this form.

    All of them, because a weight that lies in the cache is not what a model meets.
    """
    rows, _, inner = alike[0].form
    x = torch.rand(rows, inner)
    ways: Mapping[str, Sequence[Callable[[], Any]]] = {
        "mkl": [partial(torch.ops.mkl._mkl_linear, x, a.packed, a.weight, a.bias, rows) for a in alike],
        "onednn": [
            partial(torch.ops.mkldnn._linear_pointwise, x, w, a.bias, "none", [], "")
            for a, w in zip(alike, weights, strict=True)
        ],
    }
    turns = {name: cycle(calls) for name, calls in ways.items()}
    taken: dict[str, list[int]] = {name: [] for name in ways}
    for turn in turns.values():
        _nanoseconds(next(turn))
    begun = perf_counter_ns()
    while len(taken["mkl"]) < LEAST or (perf_counter_ns() - begun < BUDGET_NS and len(taken["mkl"]) < MOST):
        for name, turn in turns.items():
            taken[name].append(_nanoseconds(next(turn)))
    return median(taken["onednn"]) / median(taken["mkl"])


def _nanoseconds(call: Callable[[], Any]) -> int:
    begun = perf_counter_ns()
    call()
    return perf_counter_ns() - begun


def _move(graph_module: fx.GraphModule, linear: Linear, weight: torch.Tensor) -> None:
    graph, node = graph_module.graph, linear.node
    x, _, _, bias, _ = node.args
    name = f"_onednn_{node.name}"
    graph_module.register_buffer(name, weight, persistent=False)
    with graph.inserting_before(node):
        constant = graph.get_attr(name)
        constant.meta["is_frozen_param"] = True
        replacement = graph.call_function(
            torch.ops.mkldnn._linear_pointwise.default, (x, constant, bias, "none", [], "")
        )
    replacement.meta.update(node.meta)
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)


def _forget_unused(graph_module: fx.GraphModule) -> None:
    """Let go of constants that no node names any more: MKL's packed weights are as large as the model."""
    named = {node.target for node in graph_module.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in graph_module.named_buffers(recurse=False) if name not in named]:
        delattr(graph_module, name)
