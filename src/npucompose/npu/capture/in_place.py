"""Operators that TorchAir's in-place pass writes into a graph, and that an NPU computes on the CPU: `gelu` becomes
`gelu_`, of which torch_npu 2.6.0 has no kernel. The pass is torch.fx.passes.reinplace, run here on a copy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.passes.reinplace import _maybe_get_inplace_op, reinplace

from npucompose.graphs.effects import stream_labels
from npucompose.npu.capture.lines import traced_model_line
from npucompose.npu.capture.records import CaptureFinding
from npucompose.npu.capture.rules import rules
from npucompose.vendor.wheel_operators import WheelOperators, operators, overload_of

RULE = "cpu_kernel"


def without_kernel(traced: fx.GraphModule, graph_id: str, torch_npu: str, left_out_by: str) -> Iterator[CaptureFinding]:
    """A finding for each node that the pass puts where no kernel is; `left_out_by`: the option that leaves it out."""
    wheel = operators(torch_npu)
    worse = {node.name: form for node in traced.graph.nodes if (form := _worse(node, wheel)) is not None}
    if not worse:
        return
    # With several streams some versions leave the pass out: then it is unknown.
    written = None if stream_labels(traced.graph) else _written(traced)
    for node in traced.graph.nodes:
        form = worse.get(node.name)
        if form is None or (written is not None and written.get(node.name) is not form):
            continue
        row, said = rules().of(RULE), str(form).removesuffix(".default")
        why = overload_of(wheel.row(form.name()).because).removesuffix(".default")
        yield CaptureFinding(
            rule=RULE,
            code=row.code,
            also=row.also,
            what=f"TorchAir's in-place pass makes {said} of {node.target}, which has no kernel for the NPU in "
            f"{wheel.named}, and is computed on the CPU, by {why}",
            node=node.name,
            graph=graph_id,
            fix=f"compiler.{left_out_by}  # it leaves the pass out",
            source=traced_model_line(node.meta.get("stack_trace") or ""),
            standing="derived" if written is not None else "unknown",
        )


def _worse(node: fx.Node, wheel: WheelOperators) -> OpOverload | None:
    """The operator in place of a node, where the NPU has a kernel for the node's and none for that."""
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
        return None
    form = _maybe_get_inplace_op(node.target)
    lacks = form is not None and wheel.row(form.name()).kernel == "cpu"
    return form if lacks and wheel.row(node.target.name()).runs else None


def _written(traced: fx.GraphModule) -> dict[str, Any] | None:
    """{node: its target behind the pass}; None where the pass does not take the graph here."""
    trial = fx.GraphModule(traced, copy.deepcopy(traced.graph))
    given = [_sample(node.meta.get("val")) for node in trial.graph.nodes if node.op == "placeholder"]
    try:
        reinplace(trial, *given)
    except Exception:  # noqa: BLE001  a pass may refuse a graph in any way; the finding says unknown then
        return None
    return {node.name: node.target for node in trial.graph.nodes}


def _sample(value: Any) -> Any:
    """Memory of the value's form that holds nothing; a symbol is the number that it was traced with."""
    if isinstance(value, torch.Tensor):
        sizes = [_hint(size) for size in value.shape]
        strides = [_hint(stride) for stride in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    return _hint(value)


def _hint(value: Any) -> Any:
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
