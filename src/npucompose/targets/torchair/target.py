"""What targets `npu` and `npu_offline` share, which is everything but the platform underneath."""

from __future__ import annotations

import logging
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import CompileError, ConfigError
from npucompose.replay.interface import Lowered, LowerRequest
from npucompose.results.effective import Effective
from npucompose.schema.capabilities import Capabilities
from npucompose.table.modes import ACLGRAPH, GE
from npucompose.table.options import option
from npucompose.targets.base import OWN_PROCESS, Target, VendorCompiler, simulated_model
from npucompose.targets.torchair.config import MODES, TorchairMode
from npucompose.vendor.compiler import CompilerOptions

if TYPE_CHECKING:
    from torch import fx, nn

    from npucompose.models.inputs import Bound
    from npucompose.results.graphs import Outside
    from npucompose.results.sinking import NpuFacts
    from npucompose.sinking import GeFacts
    from npucompose.targets.compilation import Backend, Compilation

LOGGERS = ("torchair", "npugraph_ex")
NOTIFIES = 1024
"""Events between streams that one graph can have at most (GE's document on stream allocation)."""
UNMARKED_OUTPUTS = {"TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0"}
"""torch_npu's `.out` operators return a list of outputs that their schemas do not mark as written. torch warns about
such an operator, and refuses it where the variable CI is set."""
EXPORT = "export.export_mode"
JOINT = "experimental_config.aot_config_enable_joint_graph"
UNNEEDED = "target.patch_for_hcom=true: TorchAir says that torch 2.3.1 and later need no patch_for_hcom any more."


@frozen(kw_only=True)
class TorchairTarget(Target):
    """mode=max-autotune is TorchAir's GE graph, reduce-overhead and npugraph_ex are captured graphs."""

    modes: ClassVar[Mapping[str, TorchairMode]] = MODES
    detaches: ClassVar[bool] = False
    modes_share_a_process: ClassVar[bool] = False

    decompose: tuple[str, ...] = option(
        factory=tuple, doc="operators that torch takes apart before TorchAir sees them: aten.addmm, aten.gelu.default"
    )
    patch_for_hcom: bool = option(
        False, "torchair.patch_for_hcom: torch.distributed's collectives become operators of the graph; max-autotune"
    )

    @abstractmethod
    def load_platform(self, mode: str) -> None:
        """Make `torch_npu` importable, and the packages `torchair` and `npugraph_ex`."""

    @abstractmethod
    def platform(self) -> str:
        """`device` or `stand-in`."""

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
            asserts=not mine.ge,
            captures=mine.captures,
            clone_option=mine.clone_option,
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
        return tuple(_overridden(mode, options))

    def warnings(self, mode: str) -> tuple[str, ...]:
        mine = self.support(mode)
        return tuple(words for words in (mine.deprecated, UNNEEDED if self.patch_for_hcom and mine.ge else "") if words)

    def check(self, mode: str) -> None:
        super().check(mode)
        world = os.environ.get("WORLD_SIZE", "1")
        if world not in ("", "0", "1"):
            raise ConfigError(
                f"WORLD_SIZE={world}: target={self.name} compiles for one process so far. Unset WORLD_SIZE, or run "
                "each rank's graph by itself with WORLD_SIZE=1."
            )
        if self.patch_for_hcom and self.support(mode).captures:
            raise ConfigError(
                f"target.patch_for_hcom=true does not act in mode={mode}; it acts in: {GE}. Captured graphs take "
                "collectives as they are."
            )

    def prepare(self, mode: str) -> None:
        mine = self.support(mode)
        if not mine.compiles:
            return
        from npucompose.targets.torchair.config import package
        from npucompose.targets.torchair.ge_graphs import watch_ge

        with _own_signals_and_levels():
            self.load_platform(mode)
            package(mine.package)
            if mine.scope_namespace == "air":
                watch_ge()
            else:
                from npucompose import scope  # after the package, which must define its operators itself

                scope.use(mine.scope_namespace)
        if self.patch_for_hcom:
            from npucompose.targets.torchair.features import patch_for_hcom

            patch_for_hcom()

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        from npucompose.targets.torchair.config import package

        return package("torchair").inference.set_dim_gears if self.support(mode).ge else None

    def vendor_compiler(self, backend: Backend) -> VendorCompiler | None:
        from npucompose.targets.torchair import config as made
        from npucompose.targets.torchair import features
        from npucompose.targets.torchair.ge_graphs import LOADED
        from npucompose.targets.torchair.hooks import PassHooks

        mine = self.support(backend.mode)
        if not mine.compiles:
            return None
        backend.loaded_before = len(LOADED)
        hooks, custom = PassHooks(backend), made.decompositions(self.decompose, backend.mode)
        if mine.package == "npugraph_ex":  # which takes a flat mapping
            options = made.npugraph_ex_options(backend.options, hooks.before, hooks.after, backend.folders.files)
            config = made.npugraph_ex_config(options)
            compiler = _compiler(mine.package, config, custom)
            return VendorCompiler(config=config, backend=compiler, options=options)
        config = made.torchair_config(backend.options, backend.mode, hooks.before, hooks.after, backend.folders.files)
        if mine.ge and backend.folders.files and backend.options["dump_config.enable_dump"]:
            features.dump_options_into(backend.folders.files)
        return VendorCompiler(config=config, backend=_compiler(mine.package, config, custom))

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        genuine = backend.genuine
        assert genuine is not None
        keywords = {} if genuine.options is None else {"options": dict(genuine.options)}
        begun, known = perf_counter(), len(backend.compilations)
        given = fakes(example_inputs) if backend.options[JOINT] else list(example_inputs)
        with translate_errors(backend, graph_module), _backward_now():
            compiled = genuine.backend(graph_module, given, **keywords)
        backend.charge(known, perf_counter() - begun)
        return (
            _told(compiled, backend, backend.compilations[known:]) if self.support(backend.mode).captures else compiled
        )

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """TorchAir's own and `decompose`, as its backend keeps them."""
        keywords: Mapping[str, Any] = getattr(backend.genuine.backend, "keywords", {}) if backend.genuine else {}
        return keywords.get("decompositions", {})

    def cached(self, backend: Backend, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        from npucompose.targets.torchair.config import decompositions
        from npucompose.targets.torchair.features import Cached

        call = Cached(backend, module, decompositions(self.decompose, backend.mode), dynamic)

        def cached(*args: Any, **kwargs: Any) -> Any:
            with translate_errors(backend):
                return call(*args, **kwargs)

        return cached

    def export(self, backend: Backend, module: nn.Module, call: Bound, dynamic: bool | None) -> None:
        from npucompose.targets.torchair import features, ge_graphs

        known = len(ge_graphs.LOADED)
        with translate_errors(backend):
            features.export(backend, module, call, dynamic)
        if len(ge_graphs.LOADED) == known:
            raise CompileError("torchair.dynamo_export came back and exported no graph; its log says why.")

    def lower(self, request: LowerRequest) -> Lowered:
        raise ConfigError(f"target={self.name} compiles through TorchAir; it lowers no graph of ours.")

    def device_facts(self, backend: Backend) -> NpuFacts | None:
        from npucompose.targets.torchair.features import facts

        return facts(self, backend) if self.support(backend.mode).compiles else None

    def ge_facts(self, backend: Backend) -> tuple[GeFacts, ...]:
        if not self.support(backend.mode).ge:
            return ()
        from npucompose.targets.torchair.ge_graphs import LOADED, ge_facts

        return tuple(ge_facts(loaded) for loaded in LOADED[backend.loaded_before :])

    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        if not self.support(backend.mode).ge:
            return {}
        from npucompose.targets.torchair import ge_graphs
        from npucompose.targets.torchair.ge_graphs import listing

        options = ge_graphs.global_options()
        return {f"graph_{n}.ge.txt": listing(loaded, options) for n, loaded in enumerate(ge_graphs.LOADED)}


def _compiler(name: str, config: Any, decompositions: Mapping[Any, Any]) -> Callable[..., Any]:
    from npucompose.targets.torchair.config import package

    return package(name).get_npu_backend(compiler_config=config, custom_decompositions=dict(decompositions))


def _overridden(mode: str, options: CompilerOptions) -> Iterator[Effective]:
    """What TorchAir 2.13.0 turns on by itself (`AclConcreteGraph.optimize_graph_without_runtime`, `dynamo_export`)."""
    ref_data = "experimental_config.enable_ref_data"
    if mode == GE and options[EXPORT] and not options[ref_data]:
        yield Effective(option=f"compiler.{ref_data}", requested=False, effective=True, why="dynamo_export turns it on")
    reuse = "debug.aclgraph.disable_mempool_reuse_in_same_fx"
    if mode == ACLGRAPH and options["aclgraph_config.use_custom_pool"] is not None and not options[reuse]:
        yield Effective(
            option=f"compiler.{reuse}",
            requested=False,
            effective=True,
            why="with a pool of a name TorchAir forces this on, or outputs that are alive could be overwritten",
        )


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


def _told(compiled: Callable[..., Any], backend: Backend, made: Sequence[Compilation]) -> Callable[..., Any]:
    """`compiled`, which captures when it is called; what fails there is told as what fails while compiling."""
    from npucompose.targets.torchair.failures import not_captured

    refused = refused_in(made)

    def called(*args: Any) -> Any:
        try:
            return compiled(*args)
        except RuntimeError as error:
            failure = not_captured(error, backend.mode, refused, made[-1].id if made else "graph_0")
            if failure is None:
                raise
            if made:
                made[-1].failure = failure
            raise CompileError(failure.words) from error

    return called


def _backward_now() -> AbstractContextManager[Any]:
    """A backward graph is compiled together with its forward graph, and not when somebody first calls backward."""
    from torch._functorch import config

    name = "force_non_lazy_backward_lowering"
    return config.patch(name, True) if hasattr(config, name) else nullcontext()


@contextmanager
def translate_errors(backend: Backend, traced: fx.GraphModule | None = None) -> Iterator[None]:
    """An operator that TorchAir cannot convert becomes a CompileError that names it and the model's line; so does the
    first of the model's own streams, where the mode takes none.

    The graph keeps the failure, also of an error that is not understood and comes out as it was. So does what one of
    our passes raised, without the traceback that TorchAir puts into its text.
    """
    from npucompose.targets.torchair.failures import failure_of, not_captured, not_understood, streams_not_taken

    backend.refusal = None
    known = len(backend.compilations)
    try:
        yield
    except Exception as error:
        if backend.refusal is not None:
            raise backend.refusal from None
        last = next(iter(backend.compilations[known:][::-1]), None)
        graph = last.id if last is not None else "graph_0"
        failure = streams_not_taken(error, backend.mode, traced, graph) or failure_of(error, backend.mode, graph)
        if failure is None and last is not None and MODES[backend.mode].captures:
            failure = not_captured(error, backend.mode, refused_in([last]), last.id)
        if last is not None:
            last.failure = failure or not_understood(error, last.id)
        if failure is None:
            raise
        raise CompileError(failure.words) from error


def refused_in(made: Sequence[Compilation]) -> list[Outside]:
    """What stands in these graphs and no recording can hold."""
    from npucompose.graphs.recordable import refused_by_torchair

    return [outside for one in made for outside in refused_by_torchair(one.graph_module.graph)]
