"""mode=max-autotune on cpu and cuda: the passes, then Inductor with the options of `inductor`.

Knows the order of things inside Inductor; what the options mean is torch's business.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch._functorch import config as functorch_config
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor import freezing
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.exc import InductorError
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs import written_inputs
from npucompose.streams import strip
from npucompose.table.structure import facts_of
from npucompose.targets.compilers import changed_by_a_plain_wrapper, eager_at_hand, traced_weights
from npucompose_replay.counted import CountedNumbers
from npucompose_replay.inductor import cache as inductor_cache
from npucompose_replay.inductor import unfused
from npucompose_replay.inductor.choices import choosing
from npucompose_replay.inductor.in_place import ScatterInPlace
from npucompose_replay.inductor.kernels import IDENTITY, made_our_way
from npucompose_replay.inductor.subjects import Recorder, Subject
from npucompose_replay.kept.code import KeptCode
from npucompose_replay.kept.restored_code import code_of
from npucompose_replay.kept.weight_digest import digest_of

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import Lowered
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation
    from npucompose_replay.inductor.frozen_weights import Watch
    from npucompose_replay.products.winners import Winners

Frozen = Callable[["fx.GraphModule"], Any]
"""What is done with a graph whose weights have become constants, or will."""


def through_inductor(
    backend: Backend,
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    frozen: Frozen | None = None,
    recorder: Recorder | None = None,
    winners: Winners | None = None,
    watch: Watch | None = None,
    unpacked: Frozen | None = None,
) -> Callable[..., Any]:
    """The passes, then Inductor; a stream plan has been validated by its pass and is stripped here.

    `unpacked` is called with a graph for inference whose weights will be constants, before anything packs them, and
    `frozen` when they are. With a `recorder` what Inductor makes for inference is called through what that makes of it.
    With `winners` its products are computed as is known there, and it is kept there what Inductor measures of them.
    `watch` is over the graph's constants, where somebody has made one already.

    AOTAutograd's own cache is off: its key knows no pass, so that a hit would run a graph that other passes made, and
    would leave no account of this one. Inductor's cache, whose key is the graph as the passes left it, stays on.
    """
    first = _PassesFirst(backend, winners, unpacked, given=len(example_inputs))
    watch = watch or backend.frozen.watch(graph_module)
    dynamo = unfused.copied(graph_module)
    digest = digest_of(watch.tensors) if watch is not None else None
    hooks = {
        "joint_custom_pre_pass": first,
        "post_grad_custom_post_pass": _after_the_callers(ScatterInPlace(digest or "")),
    }
    # Times that Inductor keeps are of kernels that were made in another way (inductor_kernels); what wins here is
    # remembered by `winners`.
    measured = {} if winners is None else {"autotune_local_cache": False}
    settings = {**backend.inductor.settings(), **hooks, **measured, **_unfrozen(watch)}

    inner = _InnerCompile(
        first=first, watch=watch, frozen=frozen, recorder=recorder, winners=winners,
        unfused=partial(unfused.unfused, backend, dynamo, example_inputs),
    )  # fmt: skip

    def compiled_with(graph_module: fx.GraphModule, settings: dict[str, Any]) -> Any:
        # Boxed or not, it is called with the graph's inputs: Inductor's type says which, torch.compile does not care.
        quick = inductor_cache.quick(keyed=digest is not None)
        with functorch_config.patch(enable_autograd_cache=False), quick, made_our_way():
            return compile_fx(graph_module, list(example_inputs), inner_compile=inner, config_patches=settings)

    try:
        compiled = compiled_with(graph_module, settings)
    except Exception as error:
        if _raised_in_freezing(error):
            backend.notices.warn(_unfreezable(error))
        elif not isinstance(error, _InputsMerged):
            raise
        first.forget()
        compiled = compiled_with(unfused.copied(dynamo), {**settings, "freezing": False})
    called = compiled if recorder is None else eager_at_hand(compiled, dynamo)
    return called if watch is None else _holding(watch, called)


@attrs.frozen(kw_only=True, eq=False)
class _InnerCompile:
    """Inductor's `inner_compile`: called with each graph that AOTAutograd made, between its passes and the lowering."""

    first: _PassesFirst
    watch: Watch | None
    frozen: Frozen | None
    recorder: Recorder | None
    winners: Winners | None
    unfused: Callable[[fx.GraphModule], fx.GraphModule]

    def __call__(self, aot: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        infers = bool(keywords.get("is_inference"))
        freezes = infers and inductor_config.freezing
        if freezes:
            self._freeze(aot)
        elif not infers:
            self.first.rewrite(aot, inputs)
        known = len(PyCodeCache.modules)
        recorder, subject, compiled = self.recorder, None, None
        if infers and recorder is not None:
            subject = self._subject(aot, keywords.get("static_input_idxs") or (), freezes=freezes)
        if recorder is None or subject is None or recorder.wants(subject):
            try:
                compiled = self._compiled(aot, inputs, keywords)
            except InductorError as error:
                if recorder is None or subject is None or self.first.backend.partial == "refuse":
                    raise
                try:
                    recorder.gave_up(subject)
                except unfused.Untraced:
                    raise error from None
                self.first.backend.notices.warn(_gave_up(error))
        self.first.lowered()
        if freezes and self.watch is not None:
            self.watch.froze(_kept())
            self.watch.let_go += [self.first.forget, partial(_forget_code, PyCodeCache.modules[known:])]
        if recorder is None or subject is None:
            return compiled
        lowered = recorder.lowered(subject, compiled)
        given = len(self.first.backend.sources)
        return self.first.recorded(lowered, code_of(subject, compiled, inputs=len(inputs), given=given))

    def _compiled(self, aot: fx.GraphModule, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        with nullcontext() if self.winners is None else choosing(self.winners, self.first.key):
            return compile_fx_inner(aot, inputs, **keywords)

    def _freeze(self, aot: fx.GraphModule) -> None:
        _own_memory(aot)
        if self.frozen is not None:
            self.frozen(aot)
        inductor_cache.mark_packed(aot)

    def _subject(self, aot: fx.GraphModule, fixed: Sequence[int], *, freezes: bool) -> Subject:
        """Of a frozen graph Inductor numbers the inputs as they were before: none of them is said to be fixed."""
        return Subject(
            key=self.first.key,
            fixed=frozenset() if freezes else self.first.backend.fixed(aot, fixed),
            watch=self.watch if freezes else None,
            unfrozen=frozenset(_kept()),
            changed=changed_by_a_plain_wrapper(),
            written=written_inputs(aot.graph),
            is_for_operators=unfused.is_for_operators(aot.graph),
            graph_module=aot,
            counted=None if freezes else CountedNumbers.from_graph(aot.graph),
            unfused=partial(self.unfused, aot),
        )


def _gave_up(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return (
        f"Inductor cannot compile a graph ({said}): its operators are recorded as they are, as in reduce-overhead. "
        "compile.partial=refuse makes this an error."
    )


def _raised_in_freezing(error: Exception) -> bool:
    """Whether torch's own step that makes constants of weights cannot take the graph: a convolution with a padding that
    is a symbol (torch 2.13)."""
    return any(frame.f_code.co_filename == freezing.__file__ for frame, _ in traceback.walk_tb(error.__traceback__))


def _unfreezable(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"weights are not frozen: torch's freezing cannot take a graph ({type(error).__name__}: {said})."


class _InputsMerged(Exception):
    """AOTAutograd has put one input in the place of several that share memory, one of them written, so that weights do
    not stand where they did: what would be frozen by its position could be another."""


def _check_positions(given: int) -> None:
    context = TracingContext.try_get()
    known: Any = getattr(context, "fw_metadata", None)
    if known is not None and len(known.input_info) != len(traced_weights(context)) + given:
        raise _InputsMerged


def _after_the_callers(ours: CustomGraphPass) -> Any:
    """Inductor's hook holds what the caller has set there already (vLLM its pass manager): that runs first."""
    callers: Any = inductor_config.post_grad_custom_post_pass
    if callers is None:
        return ours
    return [*(callers if isinstance(callers, (list, tuple)) else (callers,)), ours]


def _own_memory(aot: fx.GraphModule) -> None:
    """Each frozen weight at the begin of a storage of its own.

    Inductor's templates for products on the CPU, which `max_autotune` may choose, read a constant from the begin of its
    storage: of weights that are views (`vector_to_parameters`) all but the first gave wrong results (torch 2.13).
    """
    for name in {str(node.target) for node in aot.graph.nodes if node.op == "get_attr"}:
        value = getattr(aot, name, None)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.storage_offset():
            with _disable_current_modes():  # torch is still tracing
                own = value.detach().clone()
            setattr(aot, name, torch.nn.Parameter(own, requires_grad=False) if name in aot._parameters else own)


def _holding(watch: Watch, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, which holds its watch; Dynamo calls what is innermost of wrappers that torch made, and not this."""

    def call(*inputs: Any) -> Any:
        return compiled(*inputs)

    call.watch = watch  # type: ignore[attr-defined]
    return call


def _unfrozen(watch: Watch | None) -> dict[str, bool]:
    """The setting that leaves weights unfrozen, where one could change and nobody would see it."""
    blind = None if watch is None else next((weight for weight in watch.weights if not weight.watchable), None)
    if blind is None or not inductor_config.freezing:
        return {}
    kind = "an inference tensor" if blind.tensor.is_inference() else f"a {type(blind.tensor).__name__}"
    warnings.warn(
        f"weights are not frozen: {blind.name} is {kind}, and nobody could see it change.", RuntimeWarning, stacklevel=2
    )
    return {"freezing": False}


def _kept() -> set[int]:
    """Ids of the weights that Inductor has left as inputs of the graph: those that it writes to or returns."""
    return {id(tensor) for tensor in traced_weights(TracingContext.try_get()) if tensor is not None}


def _forget_code(modules: Sequence[ModuleType]) -> None:
    """Modules of generated code, which hold the constants of their graphs: Inductor and Python would for ever."""
    shared = getattr(PyCodeCache, "modules_no_attr", {})  # in torch 2.7 no two graphs share a module
    common = {id(module) for module in shared.values()}
    gone = {id(module): module for module in modules if id(module) not in common}
    PyCodeCache.modules[:] = [module for module in PyCodeCache.modules if id(module) not in gone]
    for module in gone.values():
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]


class _PassesFirst(CustomGraphPass):
    """Our passes on a graph for inference, before anything of Inductor's.

    # Note [Passes before weights are packed]
    Inductor calls its last step with a graph in which freezing has folded and packed the weights already: `mm` is
    `mkl::_mkl_linear` there, and a pass that looks for a product finds none. Its first step of all is this hook. Graphs
    for training reach the hook joint, forward and backward in one; their passes run on the two halves, in `inner`.
    """

    def __init__(
        self,
        backend: Backend,
        winners: Winners | None = None,
        unpacked: Frozen | None = None,
        *,
        given: int = 0,
    ) -> None:
        """`given`: how many inputs Dynamo's graph has."""
        self.backend, self.winners, self._unpacked = backend, winners, unpacked
        self._given = given
        self._of: Compilation | None = None
        self._begun = 0.0

    def __call__(self, graph: fx.Graph) -> None:
        placeholders = graph.find_nodes(op="placeholder")
        if any("tangents" in node.name for node in placeholders):
            return
        graph_module = graph.owning_module
        assert graph_module is not None
        # Inductor of torch 2.9 and older calls this hook a second time, after it has folded constants.
        if self._of is not None and self._of.graph_module is graph_module:
            return
        if inductor_config.freezing:
            _check_positions(self._given)
        self.rewrite(graph_module, [node.meta.get("val") for node in placeholders])
        if self._unpacked is not None and inductor_config.freezing:
            self._unpacked(graph_module)

    def uuid(self) -> str:
        """The key of Inductor's cache is made of the graph as the passes left it: one for all, where nothing else says
        how it is computed."""
        return f"npucompose {IDENTITY} " + ("" if self.winners is None else self.winners.identity())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A key of Inductor's cache holds the `uuid`; before torch 2.9 it is made of copies of all settings."""
        return str, (self.uuid(),)

    def rewrite(self, aot: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._of = self.backend.rewrite(aot, inputs)
        self._of.settle()
        if strip(aot.graph):
            aot.recompile()
        self._begun = perf_counter()

    def forget(self) -> None:
        """The graph of the last `rewrite` is not called any more."""
        if self._of is not None:
            self.backend.forget(self._of)
        self._of = None

    def recorded(self, lowered: Lowered, code: KeptCode | None) -> Lowered:
        """What the graph of the last `rewrite` is called through."""
        if self._of is not None:
            self._of.lowered, self._of.code = lowered, None if code is None else facts_of(code)
        return lowered

    @property
    def key(self) -> str:
        """Of the graph of the last `rewrite`."""
        after = None if self._of is None else self._of.after
        return f"graph_{'' if after is None else after.fingerprint[:16]}"

    def lowered(self) -> None:
        """The graph of the last `rewrite` is code now."""
        if self._of is not None:
            self._of.backend_s = perf_counter() - self._begun
