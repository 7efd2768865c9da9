"""The live values of one experiment in this process: made when first asked for, remade in another process on demand."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from time import perf_counter
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn
from torch._logging import set_logs  # pyright: ignore[reportPrivateImportUsage]

from npucompose import recorder
from npucompose.activity import doing
from npucompose.compose.calls import apply_shapes, check_calls, unmarked, varied, with_loss
from npucompose.compose.calls import step as training_step
from npucompose.compose.check import Checked
from npucompose.compose.engine import Materialised, materialize, translate_torch_errors
from npucompose.compose.state import ModelState, Steadiness, seed_all, steadiness_of
from npucompose.errors import (
    CaptureError,
    CompileError,
    ConfigError,
    NpuComposeError,
    raise_for,
    unknown,
    users_line,
)
from npucompose.machine import full_collections_put_off
from npucompose.models.base import Built
from npucompose.models.inputs import Bound, bind
from npucompose.recorder import Handle
from npucompose.results.graphs import PassRecord
from npucompose.results.measured import NumericTolerance, Overwrites
from npucompose.results.record import CompileTimes
from npucompose.schema.experiment import Call, call_text
from npucompose.targets.backend import Backend
from npucompose.targets.base import NO_FOLDERS, Folders
from npucompose.targets.compilation import Compilation
from npucompose.targets.vendor_compiled import CachesGraphs, ExportsGraphs

GRAPH_ONLY = "only support in max-autotune"
"""What torchair.ops.npu_fused_infer_attention_score says in eager: a compiled graph alone has it. What torch says of a
type without a kernel is a NotImplementedError too, and the model's own."""
EXPORT, LOSS_INDEX = "export.export_mode", "experimental_config.aot_config_output_loss_index"


@frozen(kw_only=True)
class FirstCall:
    """What the first call made, and how long its parts took."""

    compiled: Callable[..., Any]
    times: CompileTimes
    """`total_s` is what compilation took of it."""
    backend: Backend
    entered: int
    """How often the backend was entered."""


def _times(backend: Backend, begun: float, ended: float) -> CompileTimes:
    """The split of a call from `begun` to `ended` (perf_counter) in which `backend` compiled its graphs."""
    dynamo = (backend.entered_at[0] if backend.entered_at else ended) - begun
    aot, passes, lowering = (
        sum(getattr(graph, part) for graph in backend.made) for part in ("aot_s", "passes_s", "backend_s")
    )
    total = dynamo + aot + passes + lowering
    return CompileTimes(dynamo_s=dynamo, aot_s=aot, passes_s=passes, backend_s=lowering, total_s=total)


class Session:
    """One experiment's model, inputs, compiled callable and detached handle.

    Parameters are shared by the reference and the compiled model, buffers are not: both start from one state
    (`rewind`), so that a model that updates a cache in place can be compared step by step.
    """

    def __init__(self, checked: Checked, folders: Folders = NO_FOLDERS) -> None:
        self.checked = checked
        self.experiment = checked.experiment
        self.folders = folders
        mode = checked.experiment.mode.spec
        able = not mode.compiles or checked.target.support(mode.name).trains
        self.trains = checked.experiment.compile.training and able
        """Calls are made with gradients, and return them."""
        self.overwrites: Mapping[str, Overwrites] = {}
        """{graph: its runs in the first call}, of graphs whose runs overwrite one another's results."""
        self.made: list[tuple[int, Call]] = []
        """The calls that were compared since the models were rewound."""
        self.traced: dict[Any, Any] = {}
        """The model as it is traced, for every mode and list of passes that were asked about (`compose.comparison`)."""

    def set_up(self) -> None:
        """What must be said to torch before anything else: threads and logs. For a process of the session's own."""
        threads = self.experiment.benchmark.threads
        if threads is not None:
            torch.set_num_threads(threads)
        logs = self.experiment.logs
        known = tuple(inspect.signature(set_logs).parameters)
        raise_for([unknown("log artifact", n, known, "logs.artifacts") for n in logs.artifacts if n not in known])
        asked: dict[str, Any] = dict.fromkeys(logs.artifacts, True)
        set_logs(**asked)
        for name, level in logs.levels.items():
            logging.getLogger(name).setLevel(level)

    @cached_property
    def materialised(self) -> Materialised:
        """What compiles."""
        made = materialize(self.checked, self.folders)
        made.backend.records_at_once = True  # a run compares and measures what recordings do
        return made

    @cached_property
    @full_collections_put_off()
    def built(self) -> Built:
        model = self.checked.model
        if model is None:
            raise ConfigError("this experiment names no model of its own.")
        seed = self.materialised.experiment.seed  # which defines the operators that a model may call
        built = model.build(seed)
        bind(built.module, built.inputs(0), f"model {model.title}")
        if self.trains:
            built = with_loss(built, self.experiment.compiler[LOSS_INDEX])
        built = self.checked.target.place(built)
        self._check_sequence(built)
        torch.manual_seed(seed)
        return built

    @property
    def calls(self) -> tuple[Call, ...]:
        """The declared calls: the example inputs, then those of `model.sequence`."""
        return ({}, *(self.checked.model.sequence if self.checked.model is not None else ()))

    def _check_sequence(self, built: Built) -> None:
        """ConfigError where a declared call does not fit the example inputs, or the shape policy not a call."""
        check_calls(self.calls[1:], built.inputs(0))
        for at, call in enumerate(self.calls[1:]):
            try:
                apply_shapes(self.experiment.shapes, varied(call, built.inputs(0)))
            except ConfigError as error:
                raise ConfigError(*(f"model.sequence[{at}]: {problem}" for problem in error.problems)) from error

    @cached_property
    def state(self) -> ModelState:
        """The model's first state; asked for before anything calls the model."""
        return ModelState(self.built.module)

    @cached_property
    def reference(self) -> nn.Module:
        """The eager model: the same parameters, all else its own. Copied before anything of the model is compiled."""
        return self.state.copy()

    @cached_property
    def steadiness(self) -> Steadiness:
        """Whether eager equals itself; from then on `rewind` rewinds all that the model depends on."""
        examples = self.built.inputs(0), self.built.inputs(0)
        return steadiness_of(self.state, self.reference, examples, self._eager_step)

    def _eager_step(self) -> tuple[Any, Mapping[str, Any]]:
        """What eager gives for step 0, and what it left of the inputs."""
        inputs = self.inputs(0)
        self.seed(0)
        return self.call(self.reference, inputs), inputs

    @property
    def modules(self) -> list[nn.Module]:
        """Every copy of the model that this process calls; they share their parameters."""
        return [self.built.module, self.reference, *(one.module for one in self.traced.values())]

    def with_passes(self, labels: Collection[str]) -> Session:
        """The same model, inputs and reference, compiled with some of the passes only."""
        passes = tuple(one for one in self.checked.passes if one[0] in labels)
        return self.with_experiment(evolve(self.checked, passes=passes))

    def with_experiment(self, checked: Checked) -> Session:
        """The same model, inputs and reference, compiled as another experiment says."""
        other = Session(checked, self.folders)
        other.built, other.state, other.reference, other.traced = self.built, self.state, self.reference, self.traced
        if "steadiness" in self.__dict__:
            other.steadiness = self.steadiness
        return other

    def rewind(self) -> None:
        """Both models as they were built (`ModelState.rewind`), the random numbers as seeded."""
        for module in (self.reference, self.built.module):
            self.state.rewind(module)
        self.seed(0)

    def seed(self, step: int) -> None:
        """Every side of a step draws the same random numbers."""
        seed_all(self.experiment.seed + step)

    def inputs(self, step: int, call: Call | None = None) -> Mapping[str, Any]:
        """Fresh inputs of a step, changed as a declared call says, with the shape policy applied."""
        call = call or {}
        inputs = varied(call, self.built.inputs(step))
        target = self.checked.target
        gears = target.set_gears(self.experiment.mode.name)
        apply_shapes(self.experiment.shapes, inputs, gears, unmarked=unmarked(call))
        return inputs

    def bind(self, inputs: Mapping[str, Any]) -> Bound:
        """The arguments of a call with these inputs; the eager model, the compiled one and a handle take the same."""
        return bind(self.built.module, inputs)

    def call(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
        """`function` with `inputs` by name for inference, with errors of Dynamo and of our backend in our words.

        In training the loss and the gradient of every parameter, as one mapping.
        """
        call = self.bind(inputs)
        with torch.set_grad_enabled(self.trains), translate_torch_errors(self.experiment.debug):
            if self.trains:
                return training_step(function, self.modules, call, self.experiment.compiler[LOSS_INDEX])
            return call(function)

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled model, its first call done."""
        return self.first_call.compiled

    @cached_property
    @full_collections_put_off()
    def first_call(self) -> FirstCall:
        """Compile by calling once, from the rewound state; what that changes is rewound before anything is compared."""
        from torch._dynamo.utils import counters

        self._try_calls_in_eager()
        self.rewind()
        module, backend = self.built.module, self.materialised.backend
        if not self.experiment.mode.spec.compiles:
            none = CompileTimes(dynamo_s=0, aot_s=0, passes_s=0, backend_s=0, total_s=0)
            return FirstCall(compiled=module, times=none, backend=backend, entered=0)
        torch._dynamo.reset()
        counters["graph_break"].clear()
        inputs = self.inputs(0)
        compiled = self._compiling(module)
        clone = self.materialised.pre.can.clone_option
        watched = clone is not None and not self.experiment.compiler[clone]
        if watched:
            from npucompose.targets.compiled_calls import Repeated

            backend.repeated = Repeated()
        doing("tracing the model")
        begun = perf_counter()
        try:
            self.call(compiled, inputs)
        except CompileError as error:
            self._try_in_eager(error)
            raise
        times = _times(backend, begun, perf_counter())
        if backend.repeated is not None:
            found = backend.repeated.close()
            self.overwrites = {graph: Overwrites(runs=n, option=f"compiler.{clone}") for graph, n in found.items()}
        return FirstCall(compiled=compiled, times=times, backend=backend, entered=len(backend.entered_at))

    def _try_in_eager(self, error: CompileError) -> None:
        """CompileError with what the model itself raises, where it cannot be called uncompiled either."""
        self.rewind()
        try:
            self.call(self.reference, self.inputs(0))
        except NpuComposeError:
            return
        except Exception as own:  # noqa: BLE001  a model may raise anything
            if GRAPH_ONLY in str(own):
                return
            where = users_line(own)
            raise CompileError(
                f"the model itself fails, compiled or not{f', at {where}' if where else ''}: "
                f"{type(own).__name__}: {' '.join(str(own).split())}"
            ) from error

    def _try_calls_in_eager(self) -> None:
        """ConfigError where the model itself cannot make a declared call; sizes that must agree are its own affair."""
        for at, call in enumerate(self.calls[1:], start=1):
            inputs = self.inputs(at, call)
            try:
                self.call(self.reference, inputs)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                if GRAPH_ONLY in str(error):
                    return
                words = " ".join(str(error).split())
                raise ConfigError(
                    f"model.sequence[{at - 1}] ({call_text(call)}): the model cannot take these inputs, even in eager: "
                    f"{type(error).__name__}: {words}"
                ) from error

    def _compiling(self, module: nn.Module) -> Callable[..., Any]:
        """What compiles when it is first called: torch.compile, or what the device has instead of it."""
        target, backend, keywords = self.checked.target, self.materialised.backend, self.materialised.compile_keywords
        can = target.support(self.experiment.mode.name)
        if self.experiment.compiler[EXPORT] and can.exports and isinstance(target, ExportsGraphs):
            return lambda *args, **kwargs: target.export(backend, module, Bound(args, kwargs), keywords["dynamic"])
        if self.experiment.compile.cache and can.caches and isinstance(target, CachesGraphs):
            return target.cached(backend, module, keywords["dynamic"])
        return backend.torch_compile(module, **keywords)

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        return tuple(self.first_call.backend.compilations)

    @property
    def compiled_once(self) -> bool:
        """Nothing was compiled since the first call."""
        return self.first_call.entered == len(self.first_call.backend.entered_at)

    @property
    def promises_bits(self) -> bool:
        """Replay equals what it replays bit for bit: the mode records kernels, every pass kept the bits of its graph,
        and eager itself has the same bits each time.
        """
        return self.records and self.steadiness.repeats and all(record.exact for record in self._pass_records)

    @property
    def records(self) -> bool:
        """The mode calls the kernels that eager calls, and makes none of its own."""
        return not self.experiment.mode.spec.fuses

    @property
    def declared(self) -> NumericTolerance:
        """What the contracts of the passes allow the results to be off by: the sum over all that were not exact."""
        records = self._pass_records
        return NumericTolerance(sum(record.rtol for record in records), sum(record.atol for record in records))

    @property
    def _pass_records(self) -> list[PassRecord]:
        return [record for compilation in self.compilations for record in compilation.passes]

    @cached_property
    @full_collections_put_off()
    def detached(self) -> Handle | None:
        """The handle that skips torch.compile's guards; None where nothing is captured, `why_attached` says why."""
        compiled = self.compiled  # so that the call that is detached only replays
        self.why_attached = self._why_attached()
        if self.why_attached:
            return None
        try:
            inputs = self.inputs(0)
            call = self.bind(inputs)
            with torch.no_grad():  # as every call is made
                return recorder.needed("nothing is detached").detach_call(
                    lambda: self.call(compiled, inputs),
                    call.args,
                    dict(call.kwargs),
                    model=self.built.module,
                )
        except CaptureError as error:
            self.why_attached = str(error)
            return None

    def _why_attached(self) -> str:
        """Why there can be no detached handle; empty where it can be tried."""
        if not self.materialised.backend.records:
            mode = self.experiment.mode.spec
            missing = recorder.installed() is None and (mode.captures or mode.fuses)
            return recorder.MISSING if missing else f"mode={self.experiment.mode.name} records nothing"
        if not self.checked.target.detaches:
            return f"target={self.checked.target.name}: its own compiler replays, from inside torch.compile"
        return self.steadiness.why_attached
