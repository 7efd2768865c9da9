"""What records for target cpu: the kernels of an FX graph, or those that Inductor makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import frozen

from npucompose.activity import doing
from npucompose.errors import CaptureError, ConfigError
from npucompose.schema.capabilities import Clocked
from npucompose.schema.recording import CACHE_OPTIONS
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.devices.base import TargetRecorder

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import Lowered, LowerRequest, PlannedRecording
    from npucompose.results.streams import StreamTimes, Timeline
    from npucompose.schema.cost_table import CostTable
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation
    from npucompose_replay.captured_graph import CapturedGraph
    from npucompose_replay.executor.trial import ExecutorName
    from npucompose_replay.front.generated_cache import HowOften
    from npucompose_replay.inductor.frozen_weights import Watch
    from npucompose_replay.inductor.native import NativeRecorder
    from npucompose_replay.kept.graphs import KeptGraph
    from npucompose_replay.memory.arena import Arena
    from npucompose_replay.plan import Workers
    from npucompose_replay.products.winners import Winners


def _clocked(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Clocked | None:
    from npucompose_replay.executor.clock import clocked

    return clocked(graph_module, inputs)


def _cost_table() -> CostTable | None:
    from npucompose_replay.executor.calibration import cost_table

    return cost_table()


@frozen
class CpuRecorder(TargetRecorder):
    loaded: ClassVar[tuple[str, ...]] = (
        "npucompose_replay.front.graph_cache",
        "npucompose_replay.capture.recorder",
        "npucompose_replay.front.detached",
    )

    target: CpuTarget

    @property
    def workers(self) -> Workers:
        from npucompose_replay.plan import Workers

        target = self.target
        return Workers(
            count=target.workers_count,
            spin_us=target.stream_spin_us,
            cores=tuple(target.stream_cores),
            falls_back=target.stream_fallback,
        )

    # The native replayer, and its build.

    @property
    def replayer(self) -> Literal["native", "portable"]:
        return "portable" if self.target.executor == "portable" or self._why_not_native() else "native"

    def capabilities(self, mode: str) -> Mapping[str, Any]:
        captures = self.target.support(mode).captures
        return {
            "tries_plans": captures and self.target.workers_count > 1 and self.replayer == "native",
            "clock": _clocked if captures and self.target.executor != "portable" else None,
            "cost_table": _cost_table if captures and self.replayer == "native" else None,
        }

    def check(self, mode: str) -> None:
        captures = self.target.support(mode).captures
        if captures and self.target.executor == "native" and (why := self._why_not_native()):
            raise ConfigError(f"target.executor=native: {why} With executor=auto the portable replayer is used.")

    def warnings(self, mode: str) -> tuple[str, ...]:
        if not self.target.support(mode).captures or self.target.executor != "auto":
            return ()
        from npucompose_replay.executor import build

        found = build.state()
        if found.kind == "not built":
            return (f"the native replayer is not built yet: {found.words}.",)
        why = self._why_not_native()
        return (f"the portable replayer is used: {build.in_one_line(why)}",) if why else ()

    def _uses_native(self, mode: str) -> bool:
        support = self.target.support(mode)
        return (support.captures or support.replays_fused) and self.target.executor != "portable"

    def _why_not_native(self) -> str:
        from npucompose_replay.executor import build

        found = build.state()
        return found.words if found.kind in ("failed", "impossible") else ""

    def start_build(self, mode: str) -> None:
        if self._uses_native(mode):
            from npucompose_replay.executor import build

            build.start()

    def finish_build(self, mode: str) -> None:
        """The native replayer, built and loaded."""
        if not self._uses_native(mode):
            return
        from npucompose_replay.executor import build

        if build.state().kind == "not built":
            doing("waiting for the compiler")
        try:
            build.load()
        except build.Unavailable as error:
            if self.target.executor == "native" and self.target.support(mode).captures:
                raise CaptureError(f"target.executor=native: {error}") from None

    # From Dynamo's graph to what is called.

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        known = len(backend.made)
        compiled = super().compile(backend, graph_module, example_inputs)
        if self.target.support(backend.mode).fuses:
            return compiled
        return _traced_where_unrecorded(graph_module, compiled, backend.made[known:])

    def through_inductor(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        winners = self._winners()
        kept = self._kept(backend, graph_module, example_inputs, winners)
        if kept is not None and (restored := kept.restored(graph_module, self.how, self._compiled)) is not None:
            return restored
        return self._compiled(backend, graph_module, example_inputs, winners, kept)

    def _kept(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], winners: Winners
    ) -> KeptGraph | None:
        """What earlier processes may have kept of a graph, and this one may keep; None where nothing is."""
        if not backend.records:
            return None
        self.finish_build(backend.mode)
        if self.replayer != "native":
            return None
        from npucompose_replay.kept.graphs import KeptGraph

        return KeptGraph.of(backend, graph_module, example_inputs, winners)

    def _compiled(
        self,
        backend: Backend,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any],
        winners: Winners,
        kept: KeptGraph | None = None,
        watch: Watch | None = None,
    ) -> Callable[..., Any]:
        from npucompose_replay.inductor import through as inductor
        from npucompose_replay.memory.freed_memory import hand_back
        from npucompose_replay.products import folded_scales, known_forms

        def unpacked(aot: fx.GraphModule) -> None:
            folded_scales.fold_scales(aot, folded_scales.frozen_inputs(aot.graph))
            known_forms.in_known_forms(aot)

        def frozen(aot: fx.GraphModule) -> None:
            known_forms.without_tanh(aot)
            known_forms.sums_in_two(aot)

        known = len(backend.made)
        recorder = self.recorder(backend, kept) if backend.records else None
        compiled = inductor.through_inductor(
            backend, graph_module, example_inputs, frozen=frozen, recorder=recorder, winners=winners, watch=watch,
            unpacked=unpacked,
        )  # fmt: skip
        for compilation in backend.made[known:]:
            compilation.winners = winners.found
        hand_back()
        return compiled

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        from npucompose.table.structure import of_facts
        from npucompose_replay.kept import restored_code
        from npucompose_replay.kept.code import KeptCode

        kept = of_facts(KeptCode, code, where="code")
        self.finish_build(backend.mode)
        recorder = self.recorder(backend) if backend.records else None
        return restored_code.restored(kept, backend, graph_module, example_inputs, recorder, self._winners())

    def recorder(self, backend: Backend, kept: KeptGraph | None = None) -> NativeRecorder:
        """What records what Inductor compiles."""
        from npucompose_replay.inductor.native import NativeRecorder

        native = self.replayer == "native"
        return NativeRecorder(backend=backend, how=self.how, native=native, kept=kept)

    def _winners(self) -> Winners:
        import torch

        from npucompose_replay.products.winners import Winners

        return Winners(pinned=self.target.kernels, threads=torch.get_num_threads())

    def lower(self, request: LowerRequest) -> Lowered:
        from npucompose_replay.front.graph_cache import GraphCache, lowered

        return lowered(GraphCache(request, **self.how(request)), "cpu")

    def how(self, request: LowerRequest) -> HowOften:
        """How the graph of a request is recorded."""
        capture_limit, clone_output = CACHE_OPTIONS[request.mode].values(request.options)
        return {
            "capture_limit": capture_limit,
            "clone_output": clone_output,
            "executor": self._executor_name,
            "partial": request.partial,
            "when_full": self.target.when_full,
            "when_new": "at_once" if request.at_once else self.target.when_new,
            "workers": self.workers,
        }

    @property
    def _executor_name(self) -> ExecutorName:
        return "torchscript" if self.target.executor == "portable" else "native"

    # Memory and times.

    def common_memory(self) -> Arena | None:
        from npucompose_replay.memory.arena import Arena

        return Arena() if self.target.pool == "model" else None

    def planned(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None:
        """On the streams of the graph's plan, where it has one: a trial at capture may yet put them on one."""
        from npucompose_replay.capture import recorder
        from npucompose_replay.executor.trial import Executors
        from npucompose_replay.memory.forecast import planned
        from npucompose_replay.operands import sharing

        executors = Executors.from_name(self._executor_name)
        plan = recorder.record(graph_module, inputs, executors.one_thread(self.workers))
        threads, _ = executors.threads(plan, self.workers, sharing(inputs))
        return planned(plan, threads)

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]:
        from npucompose.streams import made_up_inputs
        from npucompose_replay.executor.clock import measured

        times = {
            graph: measured(last, module, made_up_inputs(module.graph))
            for graph, last, module in _last_recordings(graphs)
            if last.threads is not None
        }
        return {graph: one for graph, one in times.items() if one is not None}

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]:
        from npucompose.streams import made_up_inputs
        from npucompose_replay.executor.clock import kernel_clock

        clocks = {
            graph: kernel_clock(last, module, made_up_inputs(module.graph))
            for graph, last, module in _last_recordings(graphs)
        }
        return {graph: one for graph, one in clocks.items() if one is not None}


def _traced_where_unrecorded(
    traced: fx.GraphModule, compiled: Callable[..., Any], compilations: Sequence[Compilation]
) -> Callable[..., Any]:
    """`compiled`, or for calls without a recording the graph that it was compiled of.

    Only where one graph was made of it, and no pass was allowed to change its results.
    """
    from npucompose_replay.front.as_traced import AsTraced
    from npucompose_replay.front.graph_cache import GraphCache

    if len(compilations) != 1:
        return compiled
    (made,) = compilations
    if not isinstance(made.lowered, GraphCache) or not all(record.exact for record in made.passes):
        return compiled
    counted = made.lowered.counted
    numbers = frozenset[int]() if counted is None else counted.inputs_of(traced.graph)
    moving = [i for i in made.moving_inputs if i not in numbers]
    return AsTraced(compiled, traced.forward, made.lowered, moving)


def _last_recordings(graphs: Sequence[Compilation]) -> Iterator[tuple[str, CapturedGraph, fx.GraphModule]]:
    """(graph, its last recording, its module) of the graphs that are recorded whole and as FX has them, not as code
    that a compiler made of them."""
    from npucompose_replay.captured_graph import CapturedGraph
    from npucompose_replay.front.generated_cache import GeneratedCache
    from npucompose_replay.front.graph_cache import GraphCache

    for compilation in graphs:
        lowered = compilation.lowered
        last = lowered.last if isinstance(lowered, GraphCache) else None
        if isinstance(last, CapturedGraph) and not isinstance(lowered, GeneratedCache):
            yield compilation.id, last, compilation.graph_module
