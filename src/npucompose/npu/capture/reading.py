"""What torch.compile's graphs show of the rules of a capture, without a run: operators, those that TorchAir's in-place
pass would write, and where torch cuts the model, each with the model's line.
"""

from __future__ import annotations

import copy
import linecache
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch._ops import OpOverload
from torch.fx.passes.reinplace import _maybe_get_inplace_op, reinplace

from npucompose.graphs.effects import holds_tensor, is_collective, stream_labels, tensors_in, waits_for
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
from npucompose.npu.capture.lines import is_models, traced_model_line
from npucompose.npu.capture.records import CaptureFinding
from npucompose.npu.capture.rules import rules
from npucompose.npu.capture.simulated.kernels import BrokenRule, broken_rule
from npucompose.vendor.wheel_operators import WheelOperators, operators, overload_of

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


# Operators that TorchAir's in-place pass writes into a graph, and that an NPU computes on the CPU: `gelu` becomes
# `gelu_`, of which torch_npu 2.6.0 has no kernel. The pass is torch.fx.passes.reinplace, run here on a copy.

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


# Where torch.compile cuts a model: its own reasons, each with the model's line.

BRANCH = "which code runs depends on data"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w{1,500}?)_at_\d+")


@frozen(kw_only=True)
class Break:
    """`Break(reason="Dynamo does not know how to trace …", source="model.py:5 in forward: print(x)")`."""

    reason: str
    source: str | None


@contextmanager
def recorded_breaks() -> Iterator[list[Break]]:
    """What torch.compile breaks in here, in order, a line once. Reads the reason that each cut of a graph is given."""
    from torch._dynamo.output_graph import OutputGraph

    found: list[Break] = []
    original: Any = OutputGraph.compile_subgraph
    logger = logging.getLogger("torch._dynamo")
    level = logger.level

    def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
        reason = next((one for one in (*args, *kwargs.values()) if hasattr(one, "user_stack")), None)
        if getattr(reason, "graph_break", False):
            _note_break(found, reason)
        return original(self, *args, **kwargs)

    OutputGraph.compile_subgraph = compile_subgraph  # type: ignore[method-assign]
    logger.setLevel(logging.ERROR)  # it warns of what is put down here
    try:
        yield found
    finally:
        OutputGraph.compile_subgraph = original
        logger.setLevel(level)


def _note_break(found: list[Break], reason: Any) -> None:
    made = Break(reason=_reason_words(str(reason.reason)), source=_users_line(reason.user_stack))
    if made.source is None or made.source not in [one.source for one in found]:
        found.append(made)


def _reason_words(reason: str) -> str:
    """Torch's explanation, else its first line: the rest is about torch itself."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    explained = next((line for line in lines if line.startswith("Explanation: ")), "")
    if lines and lines[0].startswith("generic_jump"):
        return BRANCH
    return (explained.removeprefix("Explanation: ") or (lines[0] if lines else "no reason given")).rstrip(".")


def _users_line(stack: Any) -> str | None:
    """Of the innermost frame that is a model's; what goes on after a cut has a name of torch's."""
    frame = next((one for one in reversed(list(stack)) if is_models(one.filename)), None)
    if frame is None:
        return None
    name = _RESUMED.sub(r"\1", frame.name)
    code = linecache.getline(frame.filename, frame.lineno).strip()
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {name}: {code}"
