"""What TorchAir does not take as it comes: attention in its third version, operands that overlap in part.

# Note [Attention under max-autotune]
On an Ascend 910B torch_npu makes npu_fusion_attention_v3 of scaled_dot_product_attention. TorchAir (torch_npu 2.13.0)
has a converter for npu_fusion_attention alone, and generates none for an operator without a namesake in CANN. Both are
FlashAttentionScore; they differ in the seeds of a dropout, numbers in the first and tensors in the third. Without
dropout the one is taken for the other, which is what the `custom_decompositions` of TorchAir's backend are for. With a
version that has a converter nothing is done.

# Note [Operands that overlap]
TorchAir's in-place pass makes `sub_(x[1:], x[:-1])` of `sub(x[1:], x[:-1])` where x is not used again: like
torch.fx.passes.reinplace, which it follows, it asks for later uses of the memory and not for the other operands of the
call. torch and torch_npu (op-plugin, `check_memory`) both refuse that call, so that a model with torch.diff in it (the
packed sequences of every Hugging Face decoder) cannot be captured. With the second operand copied the pass may act.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from npucompose.results.graphs import PassRecord

SEEDLESS = ("seed", "offset", "dropout_mask")


def convertible() -> dict[Any, Callable[..., Any]]:
    """{the third version: the first}, forward and gradient, as far as torch_npu has them and TorchAir no converter."""
    return {
        operator.default: _as_first(operator.default, getattr(torch.ops.npu, first).default)
        for third, first in (
            ("npu_fusion_attention_v3", "npu_fusion_attention"),
            ("npu_fusion_attention_grad_v3", "npu_fusion_attention_grad"),
        )
        if (operator := getattr(torch.ops.npu, third, None)) is not None and not _has_converter(operator.default)
    }


def _has_converter(operator: Any) -> bool:
    """TorchAir hangs its converters on the operators."""
    return hasattr(operator, "_ge_converter")


def _as_first(third: Any, first: Any) -> Callable[..., Any]:
    places = [argument.name for argument in third._schema.arguments]
    known = {argument.name for argument in first._schema.arguments} - set(SEEDLESS)

    def decomposed(*args: Any, **named: Any) -> Any:
        given = {**dict(zip(places, args, strict=False)), **named}
        if given.get("keep_prob", 1.0) != 1.0 or any(given.get(n) is not None for n in ("actual_seq_qlen", "prefix")):
            return NotImplemented
        results = first(**{name: value for name, value in given.items() if name in known})
        if third is not torch.ops.npu.npu_fusion_attention_v3.default:
            return results
        seeds = [given["query"].new_zeros(1, dtype=torch.int64) for _ in range(2)]
        return (*results[:4], *seeds)

    return decomposed


NAME = "separate_overlaps"


def separate_overlaps(graph_module: fx.GraphModule) -> PassRecord | None:
    """Copy what overlaps; None where nothing does.

    `sub(x[1:], x[:-1])` -> `sub(x[1:], clone(x[:-1]))`, where x is a value of the graph: inputs are not written over.
    """
    begun, before = perf_counter(), len(graph_module.graph.nodes)
    inputs = {_storage(node) for node in graph_module.graph.nodes if node.op == "placeholder"}
    copied = sum(_separated(node, inputs) for node in list(graph_module.graph.nodes))
    if not copied:
        return None
    graph_module.graph.lint()
    graph_module.recompile()
    return PassRecord(
        name=NAME,
        stage="post",
        matches=copied,
        exact=True,
        nodes_before=before,
        nodes_after=len(graph_module.graph.nodes),
        seconds=perf_counter() - begun,
    )


def _separated(node: fx.Node, inputs: set[int | None]) -> int:
    """How many operands of the call were copied."""
    operands = [arg for arg in node.args if isinstance(arg, fx.Node)]
    target: Any = node.target
    if len(operands) < 2 or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return 0
    first, *others = operands
    copied = 0
    for other in dict.fromkeys(others):
        if _storage(first) in inputs or not _overlaps(first, other):
            continue
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(torch.ops.aten.clone.default, (other,))
        copy.meta.update({key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta})
        copy.meta["val"] = torch.ops.aten.clone.default(other.meta["val"])
        node.args = tuple(copy if arg is other else arg for arg in node.args)
        copied += 1
    return copied


def _overlaps(first: fx.Node, other: fx.Node) -> bool:
    """Whether two tensors share memory and are not known to be the same elements: torch's partial overlap."""
    if _storage(first) is None or _storage(first) != _storage(other):
        return False
    a, b = ((*v.size(), *v.stride(), v.storage_offset()) for v in (first.meta["val"], other.meta["val"]))
    return len(a) != len(b) or not statically_known_true(sym_eq(a, b))


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
