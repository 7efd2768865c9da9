"""The torch.compile backend object: Dynamo's graph -> AOTAutograd -> pre passes -> post passes -> the target.

Knows the order of things and keeps a record of every graph; what a graph becomes is its compiler's business.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from npucompose import recorder
from npucompose.errors import CompileError, NpuComposeError
from npucompose.graphs import Snapshot
from npucompose.graphs.describe import places
from npucompose.graphs.inherited import IN_DYNAMO, Inherited, seen_in
from npucompose.graphs.recordable import refused_by_torchair
from npucompose.machine import full_collections_put_off
from npucompose.npu.capture.counts import CaptureWay
from npucompose.npu.torchair.records import CacheUse
from npucompose.passes.base import Constant, Constants
from npucompose.results.effective import Effective
from npucompose.results.graphs import npu_words, refused_on_npu
from npucompose.results.measured import CallStatistics
from npucompose.schema.experiment import Partial, Strict
from npucompose.streams import decision_of
from npucompose.table.modes import MODES
from npucompose.targets.base import NO_FOLDERS, Folders, Restored
from npucompose.targets.compilation import Compilation, kind_of_source, sources_of
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.inductor import InductorOptions
from npucompose.vendor.versions import REFERENCE

if TYPE_CHECKING:
    from torch import fx

    from npucompose.ops.forms import FormCheck
    from npucompose.passes.pipeline import PassPipeline
    from npucompose.recorder import FrozenWeights
    from npucompose.targets.base import Target, VendorCompiler
    from npucompose.targets.compiled_calls import Repeated
    from npucompose.targets.foretelling import Foretelling

UNCHANGED = InductorOptions()


class Compiler(Protocol):
    """Makes a callable of Dynamo's graph. It calls `Backend.rewrite` with each graph of AOTAutograd's."""

    def __call__(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]: ...


class Notices:
    """Warnings that are given once, until `torch._dynamo.reset()`."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, words: str) -> None:
        if words not in self._given:
            self._given.add(words)
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    def reset(self) -> None:
        self._given.clear()


class Backend:
    """Callable with Dynamo's (graph module, example inputs): `torch.compile(model, backend=backend)`.

    `compilations` grows by one for each FX graph that reaches the passes (forward and backward graphs count apart).
    """

    def __init__(
        self,
        *,
        target: Target,
        mode: str,
        compiler: Compiler,
        options: CompilerOptions,
        inductor: InductorOptions = UNCHANGED,
        pre: PassPipeline,
        post: PassPipeline,
        folders: Folders = NO_FOLDERS,
        partial: Partial = "cut",
        strict: Strict = "mode",
        torch_npu: str = REFERENCE,
    ) -> None:
        self.target, self.mode, self.options, self.inductor = target, mode, options, inductor
        self.compiler = compiler
        self.pre, self.post, self.folders = pre, post, folders
        self.partial: Partial = partial
        """Whether what cannot be recorded runs beside recordings or is refused."""
        self.strict: Strict = strict
        self.torch_npu = torch_npu
        """The version whose tables say what an NPU takes."""
        self.notices = Notices()
        """Shared by the backends that torch makes of one name."""
        self.made: list[Compilation] = []
        """The graphs that were compiled in this process, as far as anybody wanted that: see `compilations`."""
        self.restored: list[Restored] = []
        """The graphs of which only recordings were loaded."""
        self.genuine: VendorCompiler | None = None
        """The vendor's own objects, where the target has a compiler of its own."""
        self.reads_only = False
        """Take the graphs through the passes and no further: somebody wants to look at them."""
        self.foretelling: Foretelling | None = None
        """Somebody wants to know what captures of graphs that are only read would take."""
        self.decompositions: Mapping[Any, Callable[..., Any]] = {}
        """What AOTAutograd takes apart in a graph that is only read."""
        self.records_at_once = False
        """Calls are made for the sake of their recordings: nobody asks whether one is worth it."""
        self.records_only_watched = False
        """A graph is recorded in calls that are watched, and in no other: whoever serves makes those."""
        self.loaded_before = 0
        """Graphs that the vendor's compiler had seen in this process when this backend was made."""
        self.calls_beyond = 0
        """Calls that ran eagerly because torch makes no more versions (targets/compiled_calls.py)."""
        self.entered_at: list[float] = []
        """When Dynamo called: perf_counter seconds, one for each Dynamo graph; when the compiler was called, where it
        calls Dynamo itself."""
        self.refusal: NpuComposeError | None = None
        """What a pass raised inside the vendor's compiler, which wraps it in words of its own."""
        self.cache: CacheUse | None = None
        self.forms: FormCheck | None = None
        """Sees whether kernels and meta functions of a graph's operators agree."""
        self.repeated: Repeated | None = None
        """Counts how often graphs run that are compiled from now on."""
        self._since = 0.0
        """When the compilation of the graph of Dynamo's began."""
        self._begun = -1
        """The number of the graph that was begun last."""
        self._sources: tuple[str | None, ...] = ()
        self._in_dynamo: tuple[Inherited, ...] = ()
        """What the graph of Dynamo's shows of torch's own errors."""
        self._given: Sequence[Any] = ()
        """What Dynamo called the graph under compilation with: real tensors, one for each of `_sources`."""

    @property
    def compilations(self) -> list[Compilation]:
        """The account of every graph. One whose recording was loaded from an earlier process is compiled for it now."""
        for graph in tuple(self.restored):
            graph.full()
        return self.made

    @property
    def sources(self) -> tuple[str | None, ...]:
        """Dynamo's names of the inputs of the graph under compilation."""
        return self._sources

    def resume(self, sources: tuple[str | None, ...], inputs: Sequence[Any]) -> None:
        """A graph of Dynamo's is compiled that came earlier."""
        self._sources, self._given, self._since = sources, inputs, perf_counter()

    def reset(self) -> None:
        """torch._dynamo.reset() calls it."""
        self.notices.reset()

    @property
    def records(self) -> bool:
        """Whether kernels are recorded and replayed: those that eager calls, or those that Inductor makes."""
        support = self.target.support(self.mode)
        return support.captures or (support.replays_fused and self.inductor.replays)

    @cached_property
    def frozen(self) -> FrozenWeights:
        """Over the weights that graphs of this backend have as constants."""
        return recorder.needed("weights cannot be frozen").frozen_weights(self.inductor.frozen_weights)

    @property
    def statistics(self) -> CallStatistics:
        """How the calls of its recorded graphs ran, and those that torch made no version for."""
        counted = [getattr(compilation.lowered, "statistics", CallStatistics()) for compilation in self.made]
        hits = sum(graph.hits for graph in self.restored)
        return sum(counted, CallStatistics(eager=self.calls_beyond, hits=hits))

    def recordings(self) -> list[Mapping[str, Any]]:
        """What was recorded so far: `seconds`, `kernels`; where it is known `executor`, `pool_bytes`, …"""
        return self.target.recordings(self.mode, self.compilations)

    @cached_property
    def common_memory(self) -> Any:
        """Graphs of one model are lowered with one backend: what they compute in between may lie in one place."""
        return self.target.common_memory()

    @property
    def __name__(self) -> str:
        return f"npucompose({self.target.name}, {self.mode})"

    @full_collections_put_off()
    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        self._since = perf_counter()
        self.entered_at.append(self._since)
        self._sources, self._given = tuple(sources_of(graph_module)), example_inputs
        self._in_dynamo = tuple(seen_in(graph_module.graph, IN_DYNAMO))
        if not self.target.support(self.mode).compiles:
            return graph_module.forward
        from npucompose.targets.compiled_calls import count_by_thread

        count_by_thread()
        known = len(self.made)
        called = self.compiler(self, graph_module, example_inputs)
        if self.forms is not None:
            called = self.forms.watched(called, (one.graph_module.graph for one in self.made[known:]))
        if self.repeated is None or len(self.made) == known:
            return called
        return self.repeated.watched(called, self.made[known].id)

    def torch_compile(self, model: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
        """`torch.compile(model, backend=self, **keywords)`, and what this backend's mode wants while Dynamo traces.

        With `torch.compile` alone everything works but freezing, of which Dynamo must know before it asks a backend.
        """
        return self.around_calls(torch.compile(model, backend=self, **keywords), model, keywords)

    def around_calls(
        self, compiled: Callable[..., Any], model: Callable[..., Any], keywords: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """`compiled`, what torch.compile made of `model` with `keywords`, called as this backend's mode wants it."""
        from npucompose.targets.compiled_calls import Versions

        called = self._while_tracing(compiled)
        if self.genuine is not None:  # the vendor's users know what torch says to them
            return called if self.genuine.runs is None else self._noting_eager(called, self.genuine.runs)
        again = {**keywords, "dynamic": None}

        def eager(*args: Any, **kwargs: Any) -> Any:
            self.calls_beyond += 1
            return model(*args, **kwargs)

        return Versions(
            called,
            with_symbols=lambda: self._while_tracing(torch.compile(model, backend=self, **again)),
            eager=eager,
        )

    def _noting_eager(self, called: Callable[..., Any], runs: Callable[[], int]) -> Callable[..., Any]:
        """`called`, counting the calls for which torch compiled nothing more: no graph of the vendor's ran in them."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            before = runs()
            result = called(*args, **kwargs)
            self.calls_beyond += runs() == before
            return result

        return noted

    def _while_tracing(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        found = recorder.installed() if self.target.support(self.mode).fuses else None
        if found is None or not self.inductor.settings().get("freezing"):
            return compiled
        return found.freezing_while_tracing(compiled, self.frozen)

    def rewrite(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compilation:
        """Run both pipelines on an AOT graph, in place, and keep the record."""
        compilation = self.begin(graph_module)
        if self.records and not self.reads_only:
            self.target.finish_build(self.mode)
        begun = perf_counter()
        known = self.constants(graph_module)
        compilation.passes = (
            *self.pre(graph_module, example_inputs, constants=known),
            *self.post(graph_module, example_inputs, constants=known),
        )
        compilation.passes_s = perf_counter() - begun
        self.finish(compilation, graph_module, changed=bool(compilation.passes))
        return compilation

    def constants(self, graph_module: fx.GraphModule) -> Constants:
        """The parameters and buffers among the inputs of an AOT graph, where no gradient is wanted of them."""
        inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        found: dict[str, Constant] = {}
        for node, place in zip(inputs, places(inputs, len(self._sources)), strict=True):
            if place is None:
                continue
            value, kind = self._given[place], kind_of_source(self._sources[place])
            real = isinstance(value, torch.Tensor) and not isinstance(value, torch._subclasses.FakeTensor)
            if kind is not None and real and not (value.requires_grad and torch.is_grad_enabled()):
                found[node.name] = Constant(value=value, kind=kind)
        return found

    def fixed(self, graph_module: fx.GraphModule, static: Sequence[int]) -> frozenset[int]:
        """Those of the `static` placeholders of an AOT graph that lie at one address as long as it is called.

        Where a replay finds its inputs wherever they lie, a tensor is none of them that the caller alone says is static
        (`torch._dynamo.mark_static_address`): the cache of keys and values that transformers makes for each text is
        another one, and would be recorded anew each time.
        """
        if not self.target.follows_inputs:
            return frozenset(static)
        inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        found = enumerate(places(inputs, len(self._sources)))
        named = {i: self._sources[place] for i, place in found if place is not None and i in static}
        marked = {i for i, source in named.items() if source is not None and kind_of_source(source) is None}
        return frozenset(static) - marked

    def begin(self, graph_module: fx.GraphModule) -> Compilation:
        """The record of a graph that the passes have not seen yet."""
        begun = perf_counter()
        self._begun += 1
        return Compilation(
            id=f"graph_{self._begun}",
            before=Snapshot.from_graph(graph_module.graph),
            graph_module=graph_module,
            aot_s=begun - (self._since or self.entered_at[-1]),
            account_s=perf_counter() - begun,
            way=self._way,
            sources=self._sources,
            in_dynamo=self._in_dynamo,
        )

    @cached_property
    def _way(self) -> CaptureWay:
        spec = MODES.get(self.mode)
        option, value = spec.keeps_copies or ("", None)
        return CaptureWay(closed_by=spec.closed_by, in_place=not option or self.options[option] != value)

    def finish(self, compilation: Compilation, graph_module: fx.GraphModule, *, changed: bool = True) -> None:
        """Complete the record with the graph as the passes left it, and keep it; not `changed` is as it was before."""
        begun = perf_counter()
        compilation.graph_module = graph_module
        compilation.after = Snapshot.from_graph(graph_module.graph) if changed else compilation.before
        compilation.decision = decision_of(graph_module)
        if self.target.previews_npu:
            compilation.refused_on_npu = tuple(refused_by_torchair(graph_module.graph))
            if compilation.refused_on_npu and self.strict == "all":
                words = npu_words(compilation.refused_on_npu)
                raise CompileError(f"{words}, and strict=all refuses here what an NPU would.")
        if compilation.before.symbols:
            compilation.settle()
        self.made.append(compilation)
        compilation.account_s += perf_counter() - begun

    def forget(self, compilation: Compilation) -> None:
        """This graph is not called any more: keep nothing of it."""
        self.made = [known for known in self.made if known is not compilation]

    def effective(self) -> tuple[Effective, ...]:
        """What the graphs that were compiled so far have shown of requests that do not take effect as asked."""
        return refused_on_npu(self.target.name, (one for c in self.compilations for one in c.refused_on_npu))

    def charge(self, known: int, took: float) -> None:
        """What is left of `took` seconds is the backend's time of the graphs compiled since there were `known`."""
        for compilation in self.made[known:]:
            compilation.backend_s = max(0.0, took - compilation.aot_s - compilation.passes_s)
