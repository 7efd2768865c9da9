"""The live values of one experiment in this process: made when first asked for, remade in another process on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve, frozen

from npucompose.compose import sequence, shapes
from npucompose.compose.check import Checked
from npucompose.compose.dynamo_errors import in_our_words
from npucompose.compose.engine import Materialised, materialize
from npucompose.errors import CaptureError, ConfigError, unknown
from npucompose.models.binding import Bound, bind
from npucompose.results.measured import Overwrites
from npucompose.schema.experiment import Call, told
from npucompose.targets.base import NO_FOLDERS, Folders
from npucompose.targets.compilation import Backend, Compilation
from npucompose.targets.optional import CachesGraphs, ExportsGraphs, TakesGears

if TYPE_CHECKING:
    from torch import nn

    from npucompose.compose.state import State
    from npucompose.compose.steadiness import Steadiness
    from npucompose.compose.traced import Traced
    from npucompose.models.base import Built
    from npucompose.replay.front.detached import DetachedHandle
    from npucompose.results.graphs import PassRecord
    from npucompose.results.measured import Tolerance


GRAPH_ONLY = "only support in max-autotune"
"""What torchair.ops.npu_fused_infer_attention_score says in eager: a compiled graph alone has it. What torch says of a
type without a kernel is a NotImplementedError too, and the model's own."""
EXPORT, LOSS_INDEX = "export.export_mode", "experimental_config.aot_config_output_loss_index"


@frozen(kw_only=True)
class FirstCall:
    """How long the parts of the first call took, in seconds; `total_s` is what compilation took of it."""

    dynamo_s: float
    aot_s: float
    passes_s: float
    backend_s: float
    total_s: float

    @staticmethod
    def of(backend: Backend, begun: float, ended: float) -> FirstCall:
        """The split of a call from `begun` to `ended` (perf_counter) in which `backend` compiled its graphs."""
        graphs = backend.compilations
        dynamo = (backend.entered_at[0] if backend.entered_at else ended) - begun
        aot, passes, lowering = (sum(getattr(c, k) for c in graphs) for k in ("aot_s", "passes_s", "backend_s"))
        return FirstCall(
            dynamo_s=dynamo,
            aot_s=aot,
            passes_s=passes,
            backend_s=lowering,
            total_s=dynamo + aot + passes + lowering,
        )


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
        self.traced: dict[Any, Traced] = {}
        """The model as it is traced, for every mode and list of passes that were asked about (`compose.traced`)."""

    def set_up(self) -> None:
        """What must be said to torch before anything else: threads and logs. For a process of the session's own."""
        import inspect
        import logging

        import torch
        from torch._logging import set_logs  # pyright: ignore[reportPrivateImportUsage]

        threads = self.experiment.benchmark.threads
        if threads is not None:
            torch.set_num_threads(threads)
        logs = self.experiment.logs
        known = tuple(inspect.signature(set_logs).parameters)
        wrong = [unknown("log artifact", name, known, "logs.artifacts") for name in logs.artifacts if name not in known]
        if wrong:
            raise ConfigError(*wrong)
        set_logs(**cast("dict[str, Any]", dict.fromkeys(logs.artifacts, True)))
        for name, level in logs.levels.items():
            logging.getLogger(name).setLevel(level)

    def materialise(self) -> Materialised:
        """Make what compiles, once."""
        return self.materialised

    @cached_property
    def materialised(self) -> Materialised:
        made = materialize(self.checked, self.folders)
        made.backend.records_at_once = True  # a run compares and measures what recordings do
        return made

    @cached_property
    def built(self) -> Built:
        import torch

        model = self.checked.model
        if model is None:
            raise ConfigError("this experiment names no model of its own.")
        self.materialise()  # defines the operators that a model may call
        built = model.build(self.experiment.seed)
        bind(built.module, built.inputs(0), f"model={model.name}")
        if self.trains:
            from npucompose.compose.training import with_loss

            built = with_loss(built, self.experiment.compiler[LOSS_INDEX])
        built = self.checked.target.place(built)
        self._check_sequence(built)
        torch.manual_seed(self.experiment.seed)
        return built

    @property
    def calls(self) -> tuple[Call, ...]:
        """The declared calls: the example inputs, then those of `model.sequence`."""
        return ({}, *(self.checked.model.sequence if self.checked.model is not None else ()))

    def _check_sequence(self, built: Built) -> None:
        """ConfigError where a declared call does not fit the example inputs, or the shape policy not a call."""
        sequence.check(self.calls[1:], built.inputs(0))
        for at, call in enumerate(self.calls[1:]):
            try:
                shapes.apply(self.experiment.shapes, sequence.varied(call, built.inputs(0)))
            except ConfigError as error:
                raise ConfigError(*(f"model.sequence[{at}]: {problem}" for problem in error.problems)) from error

    @cached_property
    def state(self) -> State:
        """The model's first state; asked for before anything calls the model."""
        from npucompose.compose.state import State

        return State(self.built.module)

    def make_reference(self) -> nn.Module:
        """Copy the eager model, once, before anything of the model is compiled."""
        return self.reference

    @cached_property
    def reference(self) -> nn.Module:
        """The eager model: the same parameters, all else its own."""
        return self.state.copy()

    @cached_property
    def steadiness(self) -> Steadiness:
        """Whether eager equals itself; from then on `rewind` rewinds all that the model depends on."""
        from npucompose.compose.steadiness import steadiness_of

        return steadiness_of(self)

    @property
    def modules(self) -> list[nn.Module]:
        """Every copy of the model that this process calls; they share their parameters."""
        return [self.built.module, self.reference, *(one.module for one in self.traced.values())]

    def with_passes(self, labels: Collection[str]) -> Session:
        """The same model, inputs and reference, compiled with some of the passes only."""
        return self.of(evolve(self.checked, passes=tuple(one for one in self.checked.passes if one[0] in labels)))

    def of(self, checked: Checked) -> Session:
        """The same model, inputs and reference, compiled as another experiment says."""
        self.make_reference()
        other = Session(checked, self.folders)
        other.built, other.state, other.reference, other.traced = self.built, self.state, self.reference, self.traced
        if "steadiness" in self.__dict__:
            other.steadiness = self.steadiness
        return other

    def rewind(self) -> None:
        """Both models as they were built (`State.rewind`), the random numbers as seeded."""
        for module in (self.reference, self.built.module):
            self.state.rewind(module)
        self.seed(0)

    def seed(self, step: int) -> None:
        """Every side of a step draws the same random numbers."""
        from npucompose.compose.steadiness import seed_all

        seed_all(self.experiment.seed + step)

    def inputs(self, step: int, call: Call | None = None) -> Mapping[str, Any]:
        """Fresh inputs of a step, changed as a declared call says, with the shape policy applied."""
        call = call or {}
        inputs = sequence.varied(call, self.built.inputs(step))
        target = self.checked.target
        gears = target.set_gears(self.experiment.mode.name) if isinstance(target, TakesGears) else None
        shapes.apply(self.experiment.shapes, inputs, gears, unmarked=sequence.unmarked(call))
        return inputs

    def bind(self, inputs: Mapping[str, Any]) -> Bound:
        """The arguments of a call with these inputs; the eager model, the compiled one and a handle take the same."""
        return bind(self.built.module, inputs)

    def call(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
        """`function` with `inputs` by name for inference, with errors of Dynamo and of our backend in our words.

        In training the loss and the gradient of every parameter, as one mapping.
        """
        import torch

        call = self.bind(inputs)
        if self.trains:
            from npucompose.compose.training import step

            with in_our_words(self.experiment.debug):
                return step(function, self.modules, call, self.experiment.compiler[LOSS_INDEX])
        with torch.no_grad(), in_our_words(self.experiment.debug):
            return call(function)

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled model, its first call done; `first_call` has its times."""
        return self.compile()

    def compile(self) -> Callable[..., Any]:
        """Compile by making the first call, once."""
        return self._first[0]

    @property
    def first_call(self) -> FirstCall:
        return self._first[1]

    @cached_property
    def _first(self) -> tuple[Callable[..., Any], FirstCall]:
        """Compile by calling once, from the rewound state; what that changes is rewound before anything is compared."""
        import torch
        from torch._dynamo.utils import counters

        from npucompose.targets.compiled_calls import Repeated

        self.make_reference()
        self._try_calls_in_eager()
        self.rewind()
        module = self.built.module
        self._entered_first = 0
        if not self.experiment.mode.spec.compiles:
            return module, FirstCall(dynamo_s=0, aot_s=0, passes_s=0, backend_s=0, total_s=0)
        torch._dynamo.reset()
        counters["graph_break"].clear()
        backend, inputs = self.materialised.backend, self.inputs(0)
        compiled = self._compiling(module)
        clone = self.materialised.pre.can.clone_option
        watched = clone is not None and not self.experiment.compiler[clone]
        backend.repeated = Repeated() if watched else None
        begun = perf_counter()
        self.call(compiled, inputs)
        ended = perf_counter()
        if backend.repeated is not None:
            found = backend.repeated.close()
            self.overwrites = {graph: Overwrites(runs=n, option=f"compiler.{clone}") for graph, n in found.items()}
        self._entered_first = len(backend.entered_at)
        return compiled, FirstCall.of(backend, begun, ended)

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
                    f"model.sequence[{at - 1}] ({told(call)}): the model cannot take these inputs, even in eager: "
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
        self.compile()
        return tuple(self.materialised.backend.compilations)

    @property
    def compiled_once(self) -> bool:
        """Nothing was compiled since the first call."""
        self.compile()
        return len(self.materialised.backend.entered_at) == self._entered_first

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
    def declared(self) -> Tolerance:
        """What the contracts of the passes allow the results to be off by: the sum over all that were not exact."""
        from npucompose.results.measured import Tolerance

        records = self._pass_records
        return Tolerance(sum(record.rtol for record in records), sum(record.atol for record in records))

    @property
    def _pass_records(self) -> list[PassRecord]:
        return [record for compilation in self.compilations for record in compilation.passes]

    @cached_property
    def detached(self) -> DetachedHandle | None:
        """The handle that skips torch.compile's guards; None where nothing is captured, `why_attached` says why."""
        self.why_attached = ""
        self.compile()  # so that the call that is detached only replays
        if not self.materialised.pre.can.captures:
            self.why_attached = f"mode={self.experiment.mode.name} records nothing"
            return None
        if not self.checked.target.detaches:
            self.why_attached = (
                f"target={self.checked.target.name}: its own compiler replays, from inside torch.compile"
            )
            return None
        if self.steadiness.in_python:
            self.why_attached = self.steadiness.why_attached
            return None
        import torch

        from npucompose.replay.front.detached import detach_call, modules_of

        try:
            inputs = self.inputs(0)
            call = self.bind(inputs)
            with torch.no_grad():  # as every call is made
                return detach_call(
                    lambda: self.call(self.compiled, inputs),
                    call.args,
                    dict(call.kwargs),
                    modules=modules_of(self.built.module),
                )
        except CaptureError as error:
            self.why_attached = str(error)
            return None
