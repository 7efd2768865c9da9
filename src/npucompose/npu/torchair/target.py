"""What targets `npu` and `npu_offline` share, which is everything but the platform underneath."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, frozen

from npucompose.errors import CompileError, ConfigError, listed
from npucompose.npu.torchair import config, facts
from npucompose.npu.torchair.config import MODES, TorchairMode
from npucompose.npu.torchair.records import NpuFacts
from npucompose.recorder import Lowered, LowerRequest
from npucompose.results.effective import Effective
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option
from npucompose.targets.base import OWN_PROCESS, Target, VendorCompiler, simulated_model, streams_of
from npucompose.vendor.compiler import CompilerOptions

if TYPE_CHECKING:
    from torch import fx, nn

    from npucompose.models.inputs import Bound
    from npucompose.npu.static_graph.facts import GeFacts
    from npucompose.targets.backend import Backend


LOGGERS = ("torchair", "npugraph_ex")
NOTIFIES = 1024
"""Events between streams that one graph can have at most (GE's document on stream allocation)."""
UNMARKED_OUTPUTS = {"TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0"}
"""torch_npu's `.out` operators return a list of outputs that their schemas do not mark as written. torch warns about
such an operator, and refuses it where the variable CI is set."""
JOINT = "experimental_config.aot_config_enable_joint_graph"
UNNEEDED = "target.patch_for_hcom=true: TorchAir says that torch 2.3.1 and later need no patch_for_hcom any more."


@frozen(kw_only=True)
class TorchairTarget(Target):
    """mode=max-autotune is TorchAir's GE graph, reduce-overhead and npugraph_ex are captured graphs."""

    modes: ClassVar[Mapping[str, TorchairMode]] = MODES
    detaches: ClassVar[bool] = False
    modes_share_a_process: ClassVar[bool] = False
    communicates: ClassVar[bool] = False
    """It has links to the other ranks of a job."""

    decompose: tuple[str, ...] = option(
        factory=tuple, doc="operators that torch decomposes before TorchAir sees them: aten.addmm, aten.gelu.default"
    )
    patch_for_hcom: bool = option(
        False, "torchair.patch_for_hcom: torch.distributed's collectives become operators of the graph; max-autotune"
    )

    @abstractmethod
    def load_platform(self, mode: str) -> None:
        """Make `torch_npu` importable, and the packages `torchair` and `npugraph_ex`."""

    @abstractmethod
    def platform(self) -> str:
        """`device` or `simulated`."""

    @abstractmethod
    def package_version(self) -> str:
        """Of torch_npu."""

    @abstractmethod
    def counts(self, mode: str) -> Mapping[str, Any]:
        """Fields of NpuFacts that only the platform can count."""

    def capabilities(self, mode: str) -> Capabilities:
        mine = self.support(mode)
        return Capabilities(
            target=self.name,
            mode=mode,
            device="npu",
            scope_namespace=mine.scope_namespace,
            explicit_events=not mine.ge,
            asserts=False,  # aten._assert_async.msg has neither a GE converter nor a kernel for the NPU
            captures=mine.captures,
            clone_option=mine.clone_option,
            max_streams=streams_of(self.soc),
            max_events=NOTIFIES,
            frees_early=mine.captures,
            constants=False,
            core_limits=mine.compiles,
            gears=mine.ge,
            vendor_compiler=True,
            super_kernels=mine.ge,
            device_model=simulated_model(self.soc),
        )

    def support(self, mode: str) -> TorchairMode:
        return self.modes.get(mode, TorchairMode())

    def environment(self) -> Mapping[str, str]:
        return {**OWN_PROCESS, **UNMARKED_OUTPUTS}

    def overrides(self, mode: str, options: CompilerOptions) -> tuple[Effective, ...]:
        return tuple(
            Effective(option=f"compiler.{one.option}", requested=False, effective=True, why=one.why)
            for one in self.support(mode).turned_on
            if options[one.by] not in (None, False) and not options[one.option]
        )

    def warnings(self, mode: str) -> tuple[str, ...]:
        mine = self.support(mode)
        return tuple(words for words in (mine.deprecated, UNNEEDED if self.patch_for_hcom and mine.ge else "") if words)

    def check(self, mode: str) -> None:
        super().check(mode)
        world = os.environ.get("WORLD_SIZE", "1")
        mine = self.support(mode)
        if world not in ("", "0", "1") and mine.compiles and not (self.communicates and mine.captures):
            why = "GE orders collectives by itself" if self.communicates else "it has no link to other ranks"
            raise ConfigError(
                f"WORLD_SIZE={world}: target={self.name} compiles for one process in mode={mode}, where {why}. "
                "Captured graphs of target=npu keep the program's order (mode=reduce-overhead, npugraph_ex, with "
                "target.index=$LOCAL_RANK). Or unset WORLD_SIZE, or run each rank's graph by itself with WORLD_SIZE=1."
            )
        if self.patch_for_hcom and self.support(mode).captures:
            raise ConfigError(
                f"target.patch_for_hcom=true has no effect in mode={mode}; it takes effect in: "
                f"{listed(name for name, can in self.modes.items() if can.ge)}. Captured graphs take collectives as "
                "they are."
            )

    def prepare(self, mode: str) -> None:
        mine = self.support(mode)
        if not mine.compiles:
            self.load_platform(mode)  # a model's own code may name torch.npu
            return
        with _own_signals_and_levels():
            self.load_platform(mode)
            config.package(mine.package)
            watch(mine.package)
            if mine.scope_namespace == "air":
                facts.watch_ge()
            else:
                from npucompose import scope  # after the package, which must define its operators itself

                scope.use(mine.scope_namespace)
        if self.patch_for_hcom:
            config.patch_for_hcom()

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        return config.package("torchair").inference.set_dim_gears if self.support(mode).ge else None

    def vendor_compiler(self, backend: Backend) -> VendorCompiler | None:
        from npucompose.npu.torchair.hooks import PassHooks
        from npucompose.npu.torchair.refusals import decompositions

        mine, files = self.support(backend.mode), backend.folders.files
        if not mine.compiles:
            return None
        backend.loaded_before = len(facts.LOADED)
        hooks, options = PassHooks(backend), None
        if mine.package == "npugraph_ex":  # which takes a flat mapping
            options = config.npugraph_ex_options(backend.options, hooks.before, hooks.after, files)
            made = config.npugraph_ex_config(options)
        else:
            made = config.torchair_config(backend.options, backend.mode, hooks.before, hooks.after, files)
        if mine.ge and files and backend.options["dump_config.enable_dump"]:
            config.dump_options_into(files)
        compiler = config.package(mine.package).get_npu_backend(
            compiler_config=made, custom_decompositions=decompositions(self.decompose, mine)
        )
        ran = counts_of(mine.package)
        return VendorCompiler(config=made, backend=compiler, options=options, runs=lambda: ran.runs)

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        from npucompose.npu.torchair.refusals import translate_errors, translating_captures

        genuine = backend.genuine
        assert genuine is not None
        keywords = {} if genuine.options is None else {"options": dict(genuine.options)}
        begun, known = perf_counter(), len(backend.compilations)
        given = fakes(example_inputs) if backend.options[JOINT] else list(example_inputs)
        with translate_errors(backend, graph_module), _backward_now():
            compiled = genuine.backend(graph_module, given, **keywords)
        backend.charge(known, perf_counter() - begun)
        if not self.support(backend.mode).captures:
            return compiled
        return translating_captures(compiled, backend, backend.compilations[known:])

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """TorchAir's own and `decompose`, as its backend keeps them."""
        keywords: Mapping[str, Any] = getattr(backend.genuine.backend, "keywords", {}) if backend.genuine else {}
        return keywords.get("decompositions", {})

    def cached(self, backend: Backend, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        from npucompose.npu.torchair.refusals import decompositions, translate_errors

        custom = decompositions(self.decompose, self.support(backend.mode))
        return translate_errors(backend)(config.CachedModule(backend, module, custom, dynamic))

    def export(self, backend: Backend, module: nn.Module, call: Bound, dynamic: bool | None) -> None:
        from npucompose.npu.torchair.refusals import translate_errors

        known = len(facts.LOADED)
        with translate_errors(backend):
            config.export(backend, module, call, dynamic)
        if len(facts.LOADED) == known:
            raise CompileError("torchair.dynamo_export came back and exported no graph; its log says why.")

    def lower(self, request: LowerRequest) -> Lowered:
        raise ConfigError(f"target={self.name} compiles through TorchAir; it lowers no graph of ours.")

    def device_facts(self, backend: Backend) -> NpuFacts | None:
        """The vendor objects' own account, with what the platform counted."""
        mine, genuine = self.support(backend.mode), backend.genuine
        if not mine.compiles or genuine is None:
            return None
        ran = counts_of(mine.package)
        return NpuFacts(
            package=mine.package,
            version=self.package_version(),
            platform=self.platform(),
            config=facts.plain_options(genuine.config.as_dict()),
            fx_graphs=len(backend.compilations),
            taken=ran.graphs,
            uncompiled=ran.uncompiled,
            eager_calls=ran.calls - ran.replays,
            calls_beyond=backend.calls_beyond,
            ge_graphs=tuple(map(facts.graph_facts, facts.LOADED)) if mine.ge else (),
            global_options=facts.global_options() if mine.ge else {},
            cache=backend.cache,
            patched=facts.patched() if self.patch_for_hcom else (),
            files=facts.written(backend.folders.files),
            **self.counts(backend.mode),
        )

    def ge_facts(self, backend: Backend) -> tuple[GeFacts, ...]:
        loaded = facts.LOADED[backend.loaded_before :] if self.support(backend.mode).ge else []
        return tuple(map(facts.ge_facts, loaded))

    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        if not self.support(backend.mode).ge:
            return {}
        options = facts.global_options()
        return {f"graph_{n}.ge.txt": facts.listing(loaded, options) for n, loaded in enumerate(facts.LOADED)}


@contextmanager
def _own_signals_and_levels() -> Iterator[None]:
    """Importing TorchAir takes over Ctrl-C and SIGTERM (and then ignores them) and resets its logger: undo both.

    Its logger must be of its own class, so that one which was made before, to give it a level, is put away first.
    """
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    made = logging.root.manager.loggerDict
    levels = {name: logger.level for name in LOGGERS if isinstance(logger := made.get(name), logging.Logger)}
    for name in levels:
        del made[name]
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, level in levels.items():
            if level != logging.NOTSET:
                logging.getLogger(name).setLevel(level)


def fakes(example_inputs: Sequence[Any]) -> list[Any]:
    """Dynamo's example inputs as fake tensors of its own mode.

    # Note [A joint graph needs fake inputs]
    aot_module_simplified makes them itself. TorchAir's way to a joint graph hands its arguments on to the converter,
    which runs each operator under Dynamo's fake mode, and that refuses real tensors. The call itself gets real ones.
    """
    import torch
    from torch._guards import TracingContext

    mode = TracingContext.get().fake_mode
    assert mode is not None
    return [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in example_inputs]


def _backward_now() -> AbstractContextManager[Any]:
    """A backward graph is compiled together with its forward graph, and not when somebody first calls backward."""
    from torch._functorch import config

    name = "force_non_lazy_backward_lowering"
    return config.patch(name, True) if hasattr(config, name) else nullcontext()


# What TorchAir made of each FX graph, compiled or not, and which calls ran eagerly: counted at its own classes.


@define
class Running:
    """Counts of this process, over all its graphs."""

    graphs: int = 0
    """Graphs that TorchAir took."""
    uncompiled: int = 0
    """Those of which it made no graph of its own: it calls the FX graph, or what dumps it operator by operator."""
    runs: int = 0
    """Calls of all of them."""
    calls: int = 0
    """Calls of graphs that can be captured."""
    replays: int = 0
    """Those that replayed a capture; the others ran the FX graph eagerly."""


@cache
def counts_of(package: str) -> Running:
    """Of `torchair` or `npugraph_ex`."""
    return Running()


@cache
def watch(package: str) -> None:
    """Count what `package` makes and runs, from now on, once in a process."""
    counts = counts_of(package)
    compiler = importlib.import_module(f"{package}.npu_fx_compiler")
    base = importlib.import_module(f"{package}.core._concrete_graph").ConcreteGraphBase
    graph = importlib.import_module(f"{package}._acl_concrete_graph.acl_graph").AclGraph
    made, entered = compiler._CompiledFxGraph.__init__, compiler._CompiledFxGraph.__call__
    called, run = graph.__call__, graph.run

    def watched_init(self: Any, runner: Any, config: Any = None) -> None:
        counts.graphs += 1
        loaded = config is None  # by cache_compile: the code that was generated of a compiled graph
        counts.uncompiled += not loaded and not isinstance(runner, base)
        made(self, runner, config)

    def watched_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.runs += 1
        return entered(self, *args, **kwargs)

    def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.calls += 1
        return called(self, *args, **kwargs)

    def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.replays += 1
        return run(self, *args, **kwargs)

    compiler._CompiledFxGraph.__init__, compiler._CompiledFxGraph.__call__ = watched_init, watched_entry
    graph.__call__, graph.run = watched_call, watched_run
