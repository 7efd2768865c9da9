"""Which nodes of a graph no recording can hold, as far as the graph itself tells. Knows no device but by its name.

A recording (of kernel calls, of a CUDA graph, of an NPU's) repeats what it saw once: where the host has to look at data
to go on, or an operator is a program of its own, there is nothing to repeat.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from npucompose.graphs.effects import AUTO_FUNCTIONALIZED, control, is_functional_call, is_host, tensors_in
from npucompose.graphs.matching import model_line
from npucompose.results.graphs import Outside

HIGHER_ORDER = "it is a higher-order operator (control flow or a nested graph), not a kernel."
TO_PYTHON = "it turns data into a Python value, so the graph's control depends on the data."
MASK = "a mask as an index makes the shape of the result depend on the data."
SHAPE = "the shape of its result depends on the data."
RESIZES = "it moves a tensor to other memory, and a recording has fixed memory."
UNSAFE = "its author has tagged it cudagraph_unsafe: it must run each time."
NO_OPERATOR = "it is neither an operator nor arithmetic on numbers."

_REFUSED_BY_TORCHAIR = frozenset((HIGHER_ORDER, TO_PYTHON, MASK, SHAPE))
TAKEN_APART = frozenset((*AUTO_FUNCTIONALIZED, "run_and_save_rng_state", "run_with_rng_state"))
RESIZING = frozenset({"resize_", "resize_as_", "set_", "resize_output_"})
_MASKS = (torch.bool, torch.uint8)
_INDEXED = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"})
_HOST_MODULES = ("_operator", "operator", "math", "builtins")


def outside_of(node: fx.Node, reason: str) -> Outside:
    return Outside(node=node.name, operator=name_of(node), reason=reason, source=model_line(node))


def refused_by_recordings(graph: fx.Graph, device: str | None) -> Iterator[tuple[fx.Node, str]]:
    """The nodes that no recording on `device` (None: any) can hold, in order, each with the reason."""
    reasons = ((node, why_not(node, device)) for node in graph.nodes)
    yield from ((node, reason) for node, reason in reasons if reason is not None)


def refused_by_torchair(graph: fx.Graph) -> Iterator[Outside]:
    """The nodes that TorchAir refuses, in every mode: it converts or captures the whole graph.

    Of its own accord it takes apart what AOTAutograd made functional, and two higher-order operators about random
    numbers have converters; tests try the rows of this on the vendor's own package.
    """
    for node, reason in refused_by_recordings(graph, None):
        if reason in _REFUSED_BY_TORCHAIR and name_in_torch(node) not in TAKEN_APART:
            yield outside_of(node, reason)


def name_in_torch(node: fx.Node) -> str:
    return node.target.name() if isinstance(node.target, HigherOrderOperator) else str(node.target)


def why_not(node: fx.Node, device: str | None) -> str | None:
    """Why no recording on `device` ("cpu", "cuda"; None: any) can hold this node; None: the graph does not tell."""
    if node.op in ("placeholder", "get_attr", "output"):
        return None
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return HIGHER_ORDER
    if isinstance(target, OpOverload):
        return _of_operator(node, target) or (_elsewhere(node, device) if device is not None else None)
    is_number = node.op == "call_function" and (target is operator.getitem or _is_arithmetic(node))
    return None if is_number else NO_OPERATOR


def is_unsafe(op: OpOverload) -> bool:
    """Whether the operator's author asks for it to run each time: torch's own tag, of torch 2.8 and later."""
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    return unsafe is not None and unsafe in op.tags


def name_of(node: fx.Node) -> str:
    """`cond`, `aten.nonzero`, `mylib.sample`: what a person calls the operator."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    if isinstance(target, HigherOrderOperator):
        wrapped = node.args[0] if node.args and is_functional_call(node) else None
        return str(wrapped).removesuffix(".default") if isinstance(wrapped, OpOverload) else target.name()
    return str(getattr(target, "__name__", target))


def why_dependent(op: OpOverload, args: Any, kwargs: Any) -> str | None:
    """How the result of `op` depends on data in a way that no recording can follow; None: it does not.

    `args` and `kwargs` are real values, or fake ones. The tags are torch's own (native/tags.yaml); index.Tensor carries
    dynamic_output_shape for its masks only.
    """
    if is_unsafe(op):
        return UNSAFE
    if torch.Tag.data_dependent_output in op.tags:
        return TO_PYTHON
    if torch.Tag.dynamic_output_shape not in op.tags:
        return None
    if op.overloadpacket is torch.ops.aten.index:
        indices = args[1] if len(args) > 1 else kwargs["indices"]
        return MASK if any(getattr(index, "dtype", None) in _MASKS for index in indices) else None
    sized = op.overloadpacket is torch.ops.aten.repeat_interleave and kwargs.get("output_size") is not None
    return None if sized else SHAPE


def _of_operator(node: fx.Node, op: OpOverload) -> str | None:
    if op.overloadpacket.__name__ in RESIZING and op._schema.is_mutable:
        return RESIZES
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: given.meta.get("val", given))
    if _masked(op, args):
        return MASK
    reason = why_dependent(op, args, kwargs)
    return SHAPE if reason is None and node.meta.get("unbacked_bindings") else reason


def _masked(op: OpOverload, args: Any) -> bool:
    """`x[mask]`, whose shape depends on data, and `x[mask] = v`, which looks for the true elements on the host.

    On a CPU the second is recorded as any kernel: only where kernels are started from afar must somebody wait.
    """
    if op.namespace != "aten" or op.overloadpacket.__name__ not in _INDEXED or len(args) < 2:
        return False
    writes = "put" in op.overloadpacket.__name__
    return any(not writes or mask.device.type != "cpu" for mask in tensors_in(args[1]) if mask.dtype in _MASKS)


def _elsewhere(node: fx.Node, device: str) -> str | None:
    """A kernel on another device, or one that reads from there: a copy between devices makes the host wait.

    What steers streams is no kernel, whatever device the tensor is on that stands for its event.
    """
    if control(node) is not None:
        return None
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    kinds = {tensor.device.type for value in values for tensor in tensors_in(value)}
    others = sorted(kinds - {device})
    return f"it works on {', '.join(others)}; a recording here holds {device} kernels only." if others else None


def _is_arithmetic(node: fx.Node) -> bool:
    target: Any = node.target
    symbolic = str(getattr(target, "__name__", "")).lstrip("_").startswith("sym_")
    return symbolic or getattr(target, "__module__", "") in _HOST_MODULES or is_host(node)
