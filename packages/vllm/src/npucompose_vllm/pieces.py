"""A piece of a model that vLLM cut out, compiled by a recipe for one number of tokens, and how it is called.

Imports nothing of vLLM: a piece is a callable of the graph's inputs for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import fx

from npucompose import recorder
from npucompose.compose.engine import materialize
from npucompose.errors import CaptureError, SignatureError
from npucompose.npu.capture.pool import requests_of, symbolic_sizes
from npucompose.passes.pipeline import PassPipeline, Records
from npucompose.recorder import Handle, PlannedRecording
from npucompose.targets.backend import Backend
from npucompose.targets.compilers import LoadsCode
from npucompose.targets.foretelling import recording_of
from npucompose_vllm.recipe import Recipe


class Lowering(Protocol):
    """The engine's pass manager, as far as a recorded graph needs it."""

    def lower(self, graph: fx.Graph) -> None:
        """Make of the engine's own operators those that run."""
        ...


class Unrecorded:
    """Says which numbers of tokens came that no recording is for: each one among the sizes, and the first above."""

    def __init__(self, sizes: Sequence[int], instead: str, say: Callable[[str], None]) -> None:
        self.sizes, self.instead, self._say = tuple(sizes), instead, say
        self._above = max(self.sizes, default=0) + 1
        self._known: set[int] = set(self.sizes)

    def came(self, tokens: int) -> None:
        at = min(tokens, self._above)
        if at in self._known:
            return
        self._known.add(at)
        more = ", as will every larger one" if at == self._above else ""
        self._say(
            f"A step of {tokens} tokens is none of the recorded sizes {list(self.sizes)}: {self.instead} runs it{more}."
        )

    def refused(self, tokens: int, why: str) -> None:
        self._say(f"Steps of {tokens} tokens are not replayed: {why}")


PIECES: WeakSet[Piece] = WeakSet()
"""Of this process: an engine has no other way from what it compiled to what that takes."""


def recorded_bytes(recordings: Iterable[Mapping[str, Any]]) -> int:
    """What recordings with these facts take: each slab of shared memory once, and the results of each."""
    slabs: dict[int, int] = {}
    results = 0
    for facts in recordings:
        slabs |= dict(facts["slabs"])
        results += facts["output_bytes"]
    return sum(slabs.values()) + results


def foretold_bytes(pieces: Iterable[Piece], sizes: Sequence[int]) -> int | None:
    """What recordings of these numbers of tokens will take, concluded from the graphs of pieces that are compiled: as
    `recorded_bytes` counts it, and before any is made. None where the kernels are Inductor's, which places values by
    itself, and where nothing is compiled yet.
    """
    planned: list[PlannedRecording] = []
    known = list(pieces)
    if any(piece.backend.target.support(piece.backend.mode).fuses for piece in known):
        return None
    for size in sorted(sizes, reverse=True):
        for graph in (one.graph_module.graph for piece in known for one in piece.backend.compilations):
            symbols = {size_of.node.expr for size_of in symbolic_sizes(graph)}
            planned.append(recording_of(requests_of(graph, dict.fromkeys(symbols, size))))
    return recorder.needed("memory is not foretold").held_bytes(planned, shared=True) if planned else None


class Piece:
    """Called with the inputs of its graph: sizes of the recipe are replayed, without AOTAutograd around them.

    Weights that lie elsewhere than before (a reload) are recorded anew. Results that somebody still holds are left
    alone: vLLM's buffers are no part of a recording.
    """

    def __init__(
        self, compiled: Callable[..., Any], other: Callable[..., Any], backend: Backend, unrecorded: Unrecorded
    ) -> None:
        """`compiled` runs any size of its graph; `other` those that are not recorded."""
        self.compiled, self.other, self.backend, self.unrecorded = compiled, other, backend, unrecorded
        self._sizes = frozenset(unrecorded.sizes)
        self._handles: dict[int, Handle] = {}
        self._recorder = recorder.needed("a piece is not recorded")
        self._is_watched = self._recorder.is_watched
        PIECES.add(self)

    def __call__(self, *args: Any) -> Any:
        if self._is_watched():  # somebody else makes a handle of this call: a static-graph wrapper
            return self.compiled(*args)
        tokens = next((arg for arg in args if type(arg) is int), 0)
        handle = self._handles.get(tokens)
        if handle is not None:
            with suppress(SignatureError):
                return handle(*args)
        if tokens in self._sizes:
            return self._recorded(tokens, args)
        self.unrecorded.came(tokens)
        return self.other(*args)

    def _recorded(self, tokens: int, args: tuple[Any, ...]) -> Any:
        result, handle = self._recorder.call_and_detach(self.compiled, args, {}, outputs="keep")
        if not isinstance(handle, CaptureError):
            self._handles[tokens] = handle
        else:
            self._sizes -= {tokens}
            self.unrecorded.refused(tokens, str(handle))
        return result

    @property
    def code(self) -> Mapping[str, Any] | None:
        """By what `restored` finds the code of this piece in a later process, in plain values; None where it cannot."""
        found = [compilation.code for compilation in self.backend.compilations]
        return found[0] if len(found) == 1 else None

    def recordings(self) -> Sequence[Mapping[str, Any]]:
        """The facts of its recordings: `seconds`, `kernels`, `pool_bytes`, …"""
        return self.backend.recordings()


def compiled(
    recipe: Recipe,
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Mapping[str, Any],
    manager: Lowering,
    unrecorded: Unrecorded,
    memory: Any = None,
) -> Piece:
    """The piece `graph` through the recipe's backend.

    `settings` are Inductor's, as the engine wants them; `memory` is what recordings of other pieces compute in.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config as inductor_config

    backend = _backend(recipe, memory)
    if backend.target.support(backend.mode).fuses:
        backend.pre = backend.post = PassPipeline(passes=(), can=backend.pre.can)  # the manager runs them
    else:
        backend.pre = _lowered_first(backend.pre, manager)
    owned = _with_static_weights(copy.deepcopy(graph))
    mode = next(x.fake_mode for x in example_inputs if isinstance(x, torch._subclasses.FakeTensor))
    with tracing(TracingContext(mode)), inductor_config.patch(dict(settings)):
        called = backend(owned, list(example_inputs))
    return _piece(recipe, graph, called, backend, unrecorded)


def restored(
    recipe: Recipe,
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Mapping[str, Any],
    code: Mapping[str, Any],
    unrecorded: Unrecorded,
    memory: Any = None,
) -> Piece | None:
    """The piece `graph` as an earlier process compiled it (`Piece.code`) with the same `settings` of Inductor's; None
    where its code is not to be had."""
    from torch._inductor import config as inductor_config

    backend = _backend(recipe, memory)
    target = backend.target
    with inductor_config.patch(dict(settings)):
        called = target.restored(backend, graph, example_inputs, code) if isinstance(target, LoadsCode) else None
    return None if called is None else _piece(recipe, graph, called, backend, unrecorded)


def _backend(recipe: Recipe, memory: Any) -> Backend:
    backend = materialize(recipe.checked).backend
    backend.records_only_watched = True  # a recipe names the sizes, and their calls are watched
    if memory is not None:
        backend.common_memory = memory
    return backend


def _piece(
    recipe: Recipe, graph: fx.GraphModule, called: Callable[..., Any], backend: Backend, unrecorded: Unrecorded
) -> Piece:
    other = graph.forward if recipe.options.general == "eager" else called
    return Piece(called, other, backend, unrecorded)


def _lowered_first(pipeline: PassPipeline, manager: Lowering) -> Any:
    def run(graph_module: fx.GraphModule, *given: Any, **named: Any) -> Records:
        manager.lower(graph_module.graph)
        put_in_place(graph_module)
        return pipeline(graph_module, *given, **named)

    return run


def put_in_place(graph_module: fx.GraphModule) -> None:
    """Operators that write are in place again, as Inductor has them behind the engine's passes.

    Inductor's steps, in the surroundings that it makes for them: torch/_inductor/fx_passes/post_grad.py.
    """
    from torch._guards import detect_fake_mode
    from torch._inductor.fx_passes import post_grad, reinplace
    from torch._inductor.fx_utils import FakeTensorUpdater
    from torch._inductor.virtualized import V

    graph = graph_module.graph
    with V.set_fake_mode(detect_fake_mode([node.meta.get("val") for node in graph.nodes])):
        reinplace.reinplace_inplaceable_ops(FakeTensorUpdater(graph_module), graph)
        if hasattr(post_grad, "fix_auto_functionalized_dtype_views"):  # came with torch 2.13
            post_grad.fix_auto_functionalized_dtype_views(graph)
        post_grad.decompose_auto_functionalized(graph)
    graph_module.recompile()


def _with_static_weights(graph: fx.GraphModule) -> fx.GraphModule:
    """Parameters and buffers among the inputs are said to be where they are: AOTAutograd reads that off a graph of
    Dynamo's (torch/_functorch/_aot_autograd/frontend_utils.py), and vLLM's cutting has lost it."""
    graph.meta.setdefault("dynamo_compile_id", None)
    graph._param_name_to_source = {}  # type: ignore[assignment]
    for node in graph.graph.find_nodes(op="placeholder"):
        node._dynamo_source = None  # type: ignore[attr-defined]
        if isinstance(node.meta.get("example_value"), torch.nn.Parameter):
            node.meta["tensor_dict"] = {**node.meta.get("tensor_dict", {}), "_dynamo_static_input_type": "unguarded"}
    return graph
