"""A graph that Inductor is about to fuse, once more as eager calls it: nothing taken apart, called in the same way.

Inductor has AOTAutograd write simpler operators in the place of many (a layer norm is eight of them), so that a graph
of its own, recorded kernel by kernel, is not what the model calls. This one is traced as for modes that do not fuse.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs.recordable import name_of, refused_by_recordings
from npucompose.streams import strip
from npucompose.targets.compilers import traced_weights
from npucompose_replay.operands import traits_of
from npucompose_replay.state import fills_empty_memory

if TYPE_CHECKING:
    from npucompose.targets.backend import Backend


class Untraced(Exception):
    """Why there is no such graph, in words that go on from "unfused, it"."""


def is_for_operators(graph: fx.Graph) -> bool:
    """Whether torch's operators compute a graph otherwise than the kernels that Inductor makes (torch 2.13).

    They put in signs that a tensor has beside its memory, and fill memory without a value where torch is to be
    deterministic.
    """
    return any(map(_is_lazy, graph.nodes)) or (fills_empty_memory() and any(map(_is_empty, graph.nodes)))


def _is_lazy(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_neg() or value.is_conj())


def _is_empty(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and traits_of(node.target).uninitialised


def copied(dynamo: fx.GraphModule) -> fx.GraphModule:
    """Dynamo's graph before Inductor's first passes change it; the weights are the same tensors."""
    return fx.GraphModule(dynamo, copy.deepcopy(dynamo.graph))


def unfused(
    backend: Backend, dynamo: fx.GraphModule, example_inputs: Sequence[Any], fused: fx.GraphModule
) -> fx.GraphModule:
    """The graph behind the passes, with the placeholders of `fused`; weights that are constants there are constants.

    Raises Untraced where no recording can hold it. Called while `fused` is under compilation.
    """
    context = copy.copy(TracingContext.try_get())
    if context is None:
        raise Untraced("is traced by nobody: torch.compile is not at work")
    with _disable_current_modes(), tracing(context):
        aot = _traced(backend, dynamo, example_inputs)
    for node, _ in refused_by_recordings(aot.graph, "cpu"):
        raise Untraced(f"cannot be recorded whole: {name_of(node)}")
    weights = traced_weights(context)
    wanted = [node.name for node in fused.graph.find_nodes(op="placeholder")]
    places = {node.name: place for place, node in enumerate(aot.graph.find_nodes(op="placeholder"))}
    if not places.keys() >= set(wanted) or [*sorted(wanted, key=places.__getitem__)] != wanted:
        raise Untraced("takes other inputs")
    for node in aot.graph.find_nodes(op="placeholder"):
        if node.name not in wanted:
            place = places[node.name]
            weight = weights[place] if place < len(weights) else None
            if weight is None:
                raise Untraced("takes other inputs")
            _make_constant(aot, node, weight)
    aot.recompile()
    return aot


def _traced(backend: Backend, dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def inference(aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        known = backend.constants(aot)
        backend.pre(aot, inputs, constants=known)
        backend.post(aot, inputs, constants=known)
        strip(aot.graph)
        found.append(aot)
        return make_boxed_func(aot.forward)

    def training(*_: Any) -> Any:
        raise Untraced("computes gradients")

    compiler = aot_autograd(fw_compiler=training, inference_compiler=inference, keep_inference_input_mutations=True)
    compiler(dynamo, list(example_inputs))
    if len(found) != 1:
        raise Untraced(f"is {len(found)} graphs")
    return found[0]


def _make_constant(aot: fx.GraphModule, placeholder: fx.Node, weight: torch.Tensor) -> None:
    name = f"_weight_{placeholder.name}"
    setattr(aot, name, weight) if isinstance(weight, torch.nn.Parameter) else aot.register_buffer(name, weight)
    with aot.graph.inserting_before(placeholder):
        constant = aot.graph.get_attr(name)
    constant.meta.update(placeholder.meta)
    placeholder.replace_all_uses_with(constant)
    aot.graph.erase_node(placeholder)
