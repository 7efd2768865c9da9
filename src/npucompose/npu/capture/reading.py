"""What an FX graph shows of the rules of a capture: its operators, without a run. All of it is derived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from npucompose.graphs.effects import holds_tensor, is_collective, tensors_in, waits_for
from npucompose.graphs.recordable import (
    HIGHER_ORDER,
    MASK,
    RESIZES,
    SHAPE,
    TAKEN_APART,
    TO_PYTHON,
    name_in_torch,
    name_of,
    refused_by_recordings,
)
from npucompose.npu.capture.kernels import BrokenRule, broken_rule
from npucompose.npu.capture.lines import traced_model_line
from npucompose.npu.capture.records import CaptureFinding
from npucompose.npu.capture.rules import rules

_RULES = {
    HIGHER_ORDER: "conditional", TO_PYTHON: "host_read", MASK: "data_shape", SHAPE: "data_shape",
    RESIZES: "moves_memory",
}  # fmt: skip
"""{why no recording holds a node: the rule of a capture}; other reasons are no rule of the runtime."""
FACTORIES = frozenset({"empty", "full", "zeros", "ones", "rand", "randn", "arange", "new_empty", "new_zeros"})


def read(graph: fx.Graph, graph_id: str, torch_npu: str | None = None) -> Iterator[CaptureFinding]:
    """What the rules forbid of the nodes of an AOT graph, in order, with that version of torch_npu."""
    refused = dict(refused_by_recordings(graph, None))
    for node in graph.nodes:
        for rule, what in _forbidden(node, refused.get(node), torch_npu):
            yield _finding(node, rule, what, graph_id)


def _forbidden(node: fx.Node, reason: str | None, torch_npu: str | None) -> Iterator[tuple[str, str]]:
    """(rule, what the node does)."""
    name = name_of(node)
    if node.op != "call_function":
        return
    broken = _by_table(node, torch_npu)
    if _makes_memory(node) and _unbacked(node.meta.get("val")):
        yield "data_memory", f"{name} asks for memory whose size depends on data"
    elif broken is not None:
        yield broken.rule, broken.what
    elif reason is not None and name_in_torch(node) not in TAKEN_APART:
        yield _RULES.get(reason, "opaque"), f"{name}: {reason.rstrip('.')}"
    if is_collective(node) and not waits_for(node):
        yield "unjoined_collective", f"nothing waits for the result of {name}"


def _by_table(node: fx.Node, torch_npu: str | None) -> BrokenRule | None:
    """What the table of calls says of an operator; not of random numbers, for a graph takes dropout apart."""
    if not isinstance(node.target, OpOverload):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: given.meta.get("val", given))
    broken = broken_rule(node.target, args, kwargs, torch_npu)
    return None if broken is None or broken.rule == "random_unready" else broken


def _makes_memory(node: fx.Node) -> bool:
    """It reads no tensor and makes one."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name in FACTORIES and holds_tensor(node.meta.get("val"))


def _unbacked(value: Any) -> bool:
    sizes = (size.node for one in tensors_in(value) for size in one.shape if isinstance(size, torch.SymInt))
    return any(size.shape_env.is_unbacked_symint(symbol) for size in sizes for symbol in size.expr.free_symbols)


def _finding(node: fx.Node, rule: str, what: str, graph_id: str) -> CaptureFinding:
    row = rules().of(rule)
    return CaptureFinding(
        rule=rule,
        code=row.code,
        also=row.also,
        what=what,
        node=node.name,
        graph=graph_id,
        fix=row.fix,
        source=traced_model_line(node.meta.get("stack_trace") or ""),
        standing="derived" if rule != "opaque" else "unknown",
    )
