"""The embedded target: every machine has it. reduce-overhead is capture and replay, max-autotune is Inductor."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import frozen

from npucompose.activity import doing
from npucompose.errors import CaptureError, ConfigError
from npucompose.machine import cores, cpu_model, cpu_quota, usable_cores
from npucompose.replay.interface import (
    CACHE_OPTIONS,
    Lowered,
    LowerRequest,
    PoolOf,
    ReplayExecutor,
    WhenFull,
    WhenNew,
    pool_option,
    when_full_option,
    when_new_option,
)
from npucompose.schema.capabilities import Capabilities, Clocked
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.table.options import option
from npucompose.targets.base import TORCH_COMPILE, ModeSupport, Target
from npucompose.targets.libraries import LinearLibrary
from npucompose.targets.winners import LIMIT_MS, Measuring
from npucompose.vendor.devices import cpu

if TYPE_CHECKING:
    from torch import fx

    from npucompose.replay.captured_graph import CapturedGraph
    from npucompose.replay.executor.trial import ExecutorName
    from npucompose.replay.front.generated_cache import HowOften
    from npucompose.replay.memory.arena import Arena
    from npucompose.replay.memory.forecast import PlannedRecording
    from npucompose.replay.plan import Workers
    from npucompose.results.graphs import Partition
    from npucompose.results.streams import StreamTimes, Timeline
    from npucompose.schema.cost_table import CostTable
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation
    from npucompose.targets.frozen_weights import Watch
    from npucompose.targets.kept_code import KeptCode
    from npucompose.targets.kept_graphs import KeptGraph
    from npucompose.targets.native_inductor import NativeRecorder
    from npucompose.targets.winners import Winners


def _clocked(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Clocked | None:
    from npucompose.replay.executor.native import clocked

    return clocked(graph_module, inputs)


def _cost_table() -> CostTable | None:
    from npucompose.replay.executor.calibration import cost_table

    return cost_table()


def _traced_where_unrecorded(
    traced: fx.GraphModule, compiled: Callable[..., Any], compilations: Sequence[Compilation]
) -> Callable[..., Any]:
    """`compiled`, or for calls without a recording the graph that it was compiled of.

    Only where one graph was made of it, and no pass was allowed to change its results.
    """
    from npucompose.replay.front.graph_cache import GraphCache
    from npucompose.targets.compiled_calls import AsTraced

    if len(compilations) != 1:
        return compiled
    (made,) = compilations
    if not isinstance(made.lowered, GraphCache) or not all(record.exact for record in made.passes):
        return compiled
    counted = made.lowered.counted
    numbers = frozenset[int]() if counted is None else counted.inputs_of(traced.graph)
    moving = [i for i in made.moving_inputs if i not in numbers]
    return AsTraced(compiled, traced.forward, made.lowered, moving)


@frozen(kw_only=True)
class CpuTarget(Target):
    """Captures the AOT graph once with fixed buffers and replays it as a flat list of kernel calls.

    Streams of a plan run on threads of their own, or in one legal order where there is one core or no native replayer.
    """

    name: ClassVar[str] = "cpu"
    previews_npu: ClassVar[bool] = True
    follows_inputs: ClassVar[bool] = True
    runs_plain: ClassVar[bool] = True
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        GE: ModeSupport(fuses=True, replays_fused=True, trains=True, options=CACHE_OPTIONS[GE].supported),
        **{mode: ModeSupport(captures=True, options=CACHE_OPTIONS[mode].supported) for mode in (ACLGRAPH, NPUGRAPH_EX)},
        "eager": ModeSupport(compiles=False),
    }
    loaded: ClassVar[tuple[str, ...]] = (
        *TORCH_COMPILE,
        "npucompose.replay.front.graph_cache",
        "npucompose.replay.capture.recorder",
        "npucompose.replay.front.detached",
    )

    executor: ReplayExecutor = option(
        "auto",
        "what replays the recorded kernels: native (C++), portable (no compiler needed), auto: native if possible",
    )
    when_new: WhenNew = when_new_option()
    when_full: WhenFull = when_full_option()
    pool: PoolOf = pool_option()
    stream_threads: int | None = option(
        None,
        "threads that streams run on, including the calling one; null: one for each core; 1: only the calling one",
        ge=1,
        le=4096,
        optional=True,
    )
    stream_spin_us: float = option(
        100.0, "how long a stream's thread spins while it waits, before it sleeps", ge=0, le=1e9
    )
    stream_cores: tuple[int, ...] = option(
        factory=tuple, doc="cores that the threads except the calling one are bound to, in order; []: any but its own"
    )

    stream_fallback: bool = option(
        True,
        "if streams take longer than one stream (a busy machine), continue on one stream with the same bits, and "
        "try the streams again later",
    )

    @property
    def workers(self) -> Workers:
        from npucompose.replay.plan import Workers

        return Workers(
            count=self.workers_count,
            spin_us=self.stream_spin_us,
            cores=tuple(self.stream_cores),
            falls_back=self.stream_fallback,
        )

    @property
    def workers_count(self) -> int:
        """Threads that streams may run on."""
        return self.stream_threads or usable_cores()

    linear: LinearLibrary = option(
        "auto",
        "who computes float32 products with frozen weights, batched ones and attention, in max-autotune: mkl (packed "
        "weights), onednn, aten (torch's own operators), or auto: the fastest per shape",
    )
    measuring: Measuring = option(
        "once",
        "who computes what is chosen in max-autotune by measuring: once on a machine, which remembers it, always anew, "
        "or never: products by MKL, graphs fused",
    )
    measure_ms: float = option(LIMIT_MS, "so many milliseconds one contest may take", gt=0, le=1e6)
    kernels: Mapping[str, str] = option(
        factory=dict,
        doc="{part of a graph: who computes it}, measured or not; a recipe's lock has those of the run that it is of",
    )

    def capabilities(self, mode: str) -> Capabilities:
        captures = self.support(mode).captures
        return Capabilities(
            target=self.name,
            mode=mode,
            captures=captures,
            tries_plans=captures and self.workers_count > 1 and self._replayer() == "native",
            device_model=cpu(usable_cores()),
            profiles=True,
            clock=_clocked if captures and self.executor != "portable" else None,
            cost_table=_cost_table if captures and self._replayer() == "native" else None,
        )

    def check(self, mode: str) -> None:
        super().check(mode)
        if beyond := [core for core in self.stream_cores if core not in cores()]:
            raise ConfigError(
                f"target.stream_cores: {', '.join(map(str, beyond))} cannot be used by this process. "
                f"Its cores: {', '.join(map(str, sorted(cores())))}."
            )
        if self.support(mode).captures and self.executor == "native" and (why := self._why_not_native()):
            raise ConfigError(f"target.executor=native: {why} With executor=auto the portable replayer is used.")

    def warnings(self, mode: str) -> tuple[str, ...]:
        if not self.support(mode).captures or self.executor != "auto":
            return ()
        from npucompose.replay.executor import build

        found = build.state()
        if found.kind == "not built":
            return (f"the native replayer is not built yet: {found.words}.",)
        why = self._why_not_native()
        return (f"the portable replayer is used: {build.in_one_line(why)}",) if why else ()

    def _uses_native(self, mode: str) -> bool:
        support = self.support(mode)
        return (support.captures or support.replays_fused) and self.executor != "portable"

    def _replayer(self) -> Literal["native", "portable"]:
        return "portable" if self.executor == "portable" or self._why_not_native() else "native"

    def _why_not_native(self) -> str:
        from npucompose.replay.executor import build

        found = build.state()
        return found.words if found.kind in ("failed", "impossible") else ""

    def start_build(self, mode: str) -> None:
        if self._uses_native(mode):
            from npucompose.replay.executor import build

            build.start()

    def finish_build(self, mode: str) -> None:
        """The native replayer, built and loaded."""
        if not self._uses_native(mode):
            return
        from npucompose.replay.executor import build

        if build.state().kind == "not built":
            doing("waiting for the compiler")
        try:
            build.load()
        except build.Unavailable as error:
            if self.executor == "native" and self.support(mode).captures:
                raise CaptureError(f"target.executor=native: {error}") from None

    def identity(self) -> Mapping[str, str]:
        quota = cpu_quota()
        return {
            "cpu": cpu_model(),
            "machine": platform.machine(),
            "cores": str(usable_cores()),
            **({} if quota is None else {"cpu_quota": f"{quota:g}"}),
            "replayer": self._replayer(),
        }

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]:
        from npucompose.replay.executor.native import measured
        from npucompose.streams import made_up_inputs

        times = {
            graph: measured(last, module, made_up_inputs(module.graph))
            for graph, last, module in _last_recordings(graphs)
            if last.threads is not None
        }
        return {graph: one for graph, one in times.items() if one is not None}

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]:
        from npucompose.replay.executor.native import kernel_clock
        from npucompose.streams import made_up_inputs

        clocks = {
            graph: kernel_clock(last, module, made_up_inputs(module.graph))
            for graph, last, module in _last_recordings(graphs)
        }
        return {graph: one for graph, one in clocks.items() if one is not None}

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        if not self.support(backend.mode).fuses:
            from npucompose.targets.aot import through_aot

            known = len(backend.made)
            compiled = through_aot(backend, graph_module, example_inputs)
            return _traced_where_unrecorded(graph_module, compiled, backend.made[known:])
        winners = self._winners()
        kept = self._kept(backend, graph_module, example_inputs, winners)
        if (
            kept is not None
            and (restored := kept.restored(graph_module, self._how, self._through_inductor)) is not None
        ):
            return restored
        return self._through_inductor(backend, graph_module, example_inputs, winners, kept)

    def _kept(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], winners: Winners
    ) -> KeptGraph | None:
        """What earlier processes may have kept of a graph, and this one may keep; None where nothing is."""
        if not backend.records:
            return None
        self.finish_build(backend.mode)
        if self._replayer() != "native":
            return None
        from npucompose.targets.kept_graphs import KeptGraph

        return KeptGraph.of(backend, graph_module, example_inputs, winners)

    def _through_inductor(
        self,
        backend: Backend,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any],
        winners: Winners,
        kept: KeptGraph | None = None,
        watch: Watch | None = None,
    ) -> Callable[..., Any]:
        from npucompose.replay.memory.freed_memory import hand_back
        from npucompose.targets import attention, batched, folded_scales, inductor, known_forms, linears

        def unpacked(aot: fx.GraphModule) -> None:
            folded_scales.fold_scales(aot, folded_scales.frozen_inputs(aot.graph))
            known_forms.in_known_forms(aot)

        def chosen(aot: fx.GraphModule) -> None:
            linears.choose_linears(aot, library=self.linear, winners=winners)
            batched.choose_batched(aot, library=self.linear, winners=winners)
            attention.choose_attention(aot, library=self.linear, winners=winners)
            known_forms.without_tanh(aot)
            known_forms.sums_in_two(aot)

        known = len(backend.made)
        recorder = self.recorder(backend, winners, kept) if backend.records else None
        compiled = inductor.through_inductor(
            backend, graph_module, example_inputs, frozen=chosen, recorder=recorder, winners=winners, watch=watch,
            unpacked=unpacked,
        )  # fmt: skip
        for compilation in backend.made[known:]:
            compilation.winners = winners.found
        hand_back()
        return compiled

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], kept: KeptCode
    ) -> Callable[..., Any] | None:
        from npucompose.targets import restored_code

        self.finish_build(backend.mode)
        winners = self._winners()
        if winners.measuring == "always":
            return None
        recorder = self.recorder(backend, winners) if backend.records else None
        return restored_code.restored(kept, backend, graph_module, example_inputs, recorder, winners)

    def recorder(self, backend: Backend, winners: Winners, kept: KeptGraph | None = None) -> NativeRecorder:
        """What records what Inductor compiles."""
        from npucompose.targets.native_inductor import NativeRecorder

        native = self._replayer() == "native"
        return NativeRecorder(backend=backend, how=self._how, winners=winners, native=native, kept=kept)

    def _winners(self) -> Winners:
        import torch

        from npucompose.targets.winners import Winners

        return Winners(
            pinned=self.kernels, measuring=self.measuring, limit_ms=self.measure_ms, threads=torch.get_num_threads()
        )

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        from npucompose.replay.front.segments import planned

        return planned(graph_module, "cpu") if self.support(mode).captures else None

    def planned(self, mode: str, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None:
        """On the streams of the graph's plan, where it has one: a trial at capture may yet put them on one."""
        if not self.support(mode).captures:
            return None
        from npucompose.replay.capture import recorder
        from npucompose.replay.executor.trial import Executors
        from npucompose.replay.memory.forecast import planned
        from npucompose.replay.operands import sharing

        executors = Executors.from_name(self._executor_name)
        plan = recorder.record(graph_module, inputs, executors.one_thread(self.workers))
        threads, _ = executors.threads(plan, self.workers, sharing(inputs))
        return planned(plan, threads)

    def common_memory(self) -> Arena | None:
        from npucompose.replay.memory.arena import Arena

        return Arena() if self.pool == "model" else None

    def lower(self, request: LowerRequest) -> Lowered:
        from npucompose.replay.front.graph_cache import GraphCache, lowered

        return lowered(GraphCache(request, **self._how(request)), "cpu")

    @property
    def _executor_name(self) -> ExecutorName:
        return "torchscript" if self.executor == "portable" else "native"

    def _how(self, request: LowerRequest) -> HowOften:
        capture_limit, clone_output = CACHE_OPTIONS[request.mode].values(request.options)
        return {
            "capture_limit": capture_limit,
            "clone_output": clone_output,
            "executor": self._executor_name,
            "partial": request.partial,
            "when_full": self.when_full,
            "when_new": "at_once" if request.at_once else self.when_new,
            "workers": self.workers,
        }


def _last_recordings(graphs: Sequence[Compilation]) -> Iterator[tuple[str, CapturedGraph, fx.GraphModule]]:
    """(graph, its last recording, its module) of the graphs that are recorded whole and as FX has them, not as code
    that a compiler made of them."""
    from npucompose.replay.captured_graph import CapturedGraph
    from npucompose.replay.front.generated_cache import GeneratedCache
    from npucompose.replay.front.graph_cache import GraphCache

    for compilation in graphs:
        lowered = compilation.lowered
        last = lowered.last if isinstance(lowered, GraphCache) else None
        if isinstance(last, CapturedGraph) and not isinstance(lowered, GeneratedCache):
            yield compilation.id, last, compilation.graph_module
