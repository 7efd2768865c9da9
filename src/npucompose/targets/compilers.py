"""Who makes a callable of Dynamo's graph: the target itself, Inductor in a mode that fuses, else AOTAutograd alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from npucompose import recorder
from npucompose.errors import CaptureError
from npucompose.recorder import LowerRequest, RunAsEager
from npucompose.streams import strip

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend


@runtime_checkable
class CompilesGraphs(Protocol):
    """A target with a way of its own."""

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Dynamo's graph -> a callable."""
        ...


@runtime_checkable
class LoadsCode(Protocol):
    """A target for which code of an earlier process can be loaded."""

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """As `compile`, of a graph whose code an earlier process made (`Compilation.code`), without compiling anything;
        None where that cannot be."""
        ...


@runtime_checkable
class Decomposes(Protocol):
    """A target whose compiler takes operators apart before the passes see a graph."""

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """{operator: what AOTAutograd writes in its place}."""
        ...


def compiled(backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The `Compiler` of every backend: what its target makes of the graph; a backend that `reads_only` gets the graph
    as the passes left it."""
    target = backend.target
    if backend.reads_only:
        return only_read(backend, graph_module, example_inputs)
    if isinstance(target, CompilesGraphs):
        return target.compile(backend, graph_module, example_inputs)
    found = recorder.installed() if target.support(backend.mode).fuses else None
    if found is not None:
        return found.device(target).compile(backend, graph_module, example_inputs)
    return through_aot(backend, graph_module, example_inputs)


def decompositions(backend: Backend) -> Mapping[Any, Callable[..., Any]]:
    """{operator: what AOTAutograd writes in its place} before the passes see a graph of this backend; where Inductor
    calls AOTAutograd itself, what it writes in a graph that is only read."""
    target = backend.target
    if isinstance(target, Decomposes):
        return target.decompositions(backend)
    if not target.support(backend.mode).fuses:
        return {}
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


# The way through AOTAutograd: the passes, then the target; calls that want gradients run as AOTAutograd makes them.


def static_inputs(backend: Backend, aot: fx.GraphModule) -> frozenset[int]:
    """Placeholders of the graph under compilation whose address does not change (AOTAutograd's own list)."""
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return backend.fixed(aot, getattr(metadata, "static_input_indices", None) or ())


def traced_weights(context: TracingContext | None) -> list[torch.Tensor | None]:
    """The parameters and buffers of the graph under compilation, its first inputs; None for each that freezing has made
    a constant. Empty where no torch.compile is at work."""
    return list(getattr(context, "params_flat", None) or ())


def changed_by_a_plain_wrapper() -> tuple[torch.Tensor | int, ...] | None:
    """Of the graph for inference that is under compilation: what AOTAutograd's wrapper raises the version of after each
    call (a parameter or buffer that the graph has from Dynamo, or the number of one of Dynamo's inputs), where it does
    nothing else but call the graph; None where it does (views made anew, copies into inputs,
    tokens, subclasses, guards of its own), and where this torch does not say so.
    """
    context = TracingContext.try_get()
    found: Any = getattr(context, "fw_metadata", None)
    if context is None or found is None or context.guards_context.aotautograd_guards:
        return None
    try:
        made = [one.output_type.name == "non_alias" and not one.requires_grad for one in found.output_info]
        subclasses = [
            one for one in (*found.subclass_inp_meta, *found.subclass_fw_graph_out_meta) if hasattr(one, "attrs")
        ]
        more = found.num_mutated_inp_runtime_indices, found.num_intermediate_bases, found.tokens, subclasses
        modes = found.grad_enabled_mutation, getattr(found, "is_rng_op_functionalized", None)
        changed = found.mutated_graph_handled_indices_seen_by_autograd
    except AttributeError:
        return None
    if not all(made) or any(more) or any(modes) or modes[0] is not None:
        return None
    weights: list[Any] = traced_weights(context)
    return tuple(weights[at] if at < len(weights) else at - len(weights) for at in changed)


def through_aot(backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd for inference, then the passes, then `target.lower`."""

    def inference(aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if backend.target.leaves_as_passed(backend.mode):
            return as_passed(backend, aot, inputs)
        compilation = backend.rewrite(aot, inputs)
        begun = perf_counter()
        compilation.lowered = backend.target.lower(
            LowerRequest(
                mode=backend.mode,
                graph_module=aot,
                example_inputs=tuple(inputs),
                static_inputs=static_inputs(backend, aot),
                options=backend.options,
                memory=backend.common_memory,
                partial=backend.partial,
                at_once=backend.records_at_once,
                only_watched=backend.records_only_watched,
                eager_at_hand=True,
            )
        )
        compilation.backend_s = perf_counter() - begun
        return compilation.lowered

    training = refuse_training if backend.partial == "refuse" else run_as_it_is(backend)
    compiler = aot_autograd(
        fw_compiler=training,
        bw_compiler=training,
        inference_compiler=inference,
        keep_inference_input_mutations=True,
    )
    return eager_at_hand(_uncached(compiler, graph_module, example_inputs), graph_module)


def eager_at_hand(compiled: Callable[..., Any], graph_module: fx.GraphModule) -> Callable[..., Any]:
    """`compiled`; a call that it leaves to eager (`RunAsEager`) runs the graph of Dynamo's that it was made of."""
    forward = graph_module.forward

    def call(*inputs: Any) -> Any:
        try:
            return compiled(*inputs)
        except RunAsEager:
            pass  # handled outside, so that what is raised there does not carry this one along
        return forward(*inputs)

    return call


def _uncached(compiler: Any, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd without its own cache, which takes Inductor's code and nothing else. Some who call a backend ask for
    the cache around it (vLLM)."""
    with functorch_config.patch(enable_autograd_cache=False):
        return compiler(graph_module, list(example_inputs))


def only_read(backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd and the passes; what is called then is the graph itself, without the scopes of its plan."""

    def reading(aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return as_passed(backend, aot, inputs)

    compiler = aot_autograd(
        fw_compiler=reading,
        inference_compiler=reading,
        decompositions=dict(backend.decompositions),
        keep_inference_input_mutations=True,
    )
    return _uncached(compiler, graph_module, example_inputs)


def as_passed(backend: Backend, aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The passes, and then the graph itself, in no streams."""
    compilation = backend.rewrite(aot, inputs)
    compilation.settle()
    called = None
    if backend.reads_only:
        compilation.planned = backend.target.partition(backend.mode, aot)
        if backend.foretelling is not None:
            planned = partial(backend.target.planned, backend.mode)
            called = backend.foretelling.watched(planned, compilation, aot)
    if strip(aot.graph):
        aot.recompile()
    return make_boxed_func(called or aot.forward)


NOT_RECORDED = (
    "an input or a parameter requires grad: this call runs through AOTAutograd, forward and backward, without a "
    "recording, and so do all that want gradients. Under torch.no_grad() or with requires_grad_(False) it is recorded; "
    "mode=max-autotune fuses with gradients too; compile.partial=refuse makes this an error."
)


def refuse_training(*_: Any) -> Any:
    """AOTAutograd's fw_compiler: it is asked only when a gradient is wanted."""
    raise CaptureError(
        "this mode records kernels for inference, and an input or parameter requires grad. "
        "Call the model under torch.no_grad() with requires_grad_(False), or use mode=max-autotune, which trains."
    )


def run_as_it_is(backend: Backend) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """AOTAutograd's fw_compiler and bw_compiler: the passes, in no streams, and the graph itself."""

    def compile(aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        backend.notices.warn(NOT_RECORDED)
        return as_passed(backend, aot, inputs)

    return compile
