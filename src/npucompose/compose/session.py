"""The live values of one experiment in this process: made when first asked for, remade in another process on demand."""

from __future__ import annotations

import copy
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
from npucompose.schema.sequence import Call, told
from npucompose.targets.base import NO_FOLDERS, Folders
from npucompose.targets.compilation import Backend, Compilation

if TYPE_CHECKING:
    from torch import nn

    from npucompose.models.base import Built
    from npucompose.schema.passes import PassRecord
    from npucompose.schema.tolerance import Tolerance
    from npucompose.targets.detached import DetachedHandle


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
        mode = checked.experiment.mode.name
        self.trains = checked.experiment.compile.training and (mode == "eager" or checked.target.trains(mode))
        """Calls are made with gradients, and return them."""

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

    @cached_property
    def materialised(self) -> Materialised:
        return materialize(self.checked, self.folders)

    @cached_property
    def built(self) -> Built:
        import torch

        model = self.checked.model
        if model is None:
            raise ConfigError("this experiment names no model of its own.")
        self.materialised  # noqa: B018  defines the operators that a model may call
        built = model.build(self.experiment.seed)
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
    def reference(self) -> nn.Module:
        """The eager model: the same parameters, buffers of its own."""
        module = self.built.module
        return copy.deepcopy(module, memo={id(p): p for p in module.parameters()})

    def with_passes(self, labels: Collection[str]) -> Session:
        """The same model, inputs and reference, compiled with some of the passes only."""
        return self.of(evolve(self.checked, passes=tuple(one for one in self.checked.passes if one[0] in labels)))

    def of(self, checked: Checked) -> Session:
        """The same model, inputs and reference, compiled as another experiment says."""
        self.reference  # noqa: B018  made before anything of the model is compiled
        other = Session(checked, self.folders)
        other.built, other.reference, other._start = self.built, self.reference, self._start
        return other

    @cached_property
    def _start(self) -> list[Any]:
        return [b.detach().clone() for b in self.reference.buffers()]

    def rewind(self) -> None:
        """Both models' buffers as they were built, the random numbers as seeded."""
        import torch

        for module in (self.reference, self.built.module):
            for buffer, start in zip(module.buffers(), self._start, strict=True):
                buffer.copy_(start)
        torch.manual_seed(self.experiment.seed)

    def inputs(self, step: int, call: Call | None = None) -> Mapping[str, Any]:
        """Fresh inputs of a step, changed as a declared call says, with the shape policy applied."""
        call = call or {}
        inputs = sequence.varied(call, self.built.inputs(step))
        gears = self.checked.target.set_gears(self.experiment.mode.name)
        shapes.apply(self.experiment.shapes, inputs, gears, unmarked=sequence.unmarked(call))
        return inputs

    def call(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
        """`function(*inputs.values())` for inference, with errors of Dynamo and of our backend in our words.

        In training the loss and the gradient of every parameter, as one mapping.
        """
        import torch

        if self.trains:
            from npucompose.compose.training import step

            with in_our_words(self.experiment.debug):
                modules = (self.built.module, self.reference)
                return step(function, modules, tuple(inputs.values()), self.experiment.compiler[LOSS_INDEX])
        with torch.no_grad(), in_our_words(self.experiment.debug):
            return function(*inputs.values())

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled model, its first call done; `first_call` has its times."""
        return self._first[0]

    @property
    def first_call(self) -> FirstCall:
        return self._first[1]

    @cached_property
    def _first(self) -> tuple[Callable[..., Any], FirstCall]:
        """Compile by calling once, from the rewound state; what that changes is rewound before anything is compared."""
        import torch
        from torch._dynamo.utils import counters

        self._try_calls_in_eager()
        self.rewind()
        module = self.built.module
        self._entered_first = 0
        if self.experiment.mode.name == "eager":
            return module, FirstCall(dynamo_s=0, aot_s=0, passes_s=0, backend_s=0, total_s=0)
        torch._dynamo.reset()
        counters["graph_break"].clear()
        backend, inputs = self.materialised.backend, self.inputs(0)
        compiled = self._compiling(module)
        begun = perf_counter()
        self.call(compiled, inputs)
        ended = perf_counter()
        self._entered_first = len(backend.entered_at)
        return compiled, FirstCall.of(backend, begun, ended)

    def _try_calls_in_eager(self) -> None:
        """ConfigError where the model itself cannot make a declared call; sizes that must agree are its own affair."""
        for at, call in enumerate(self.calls[1:], start=1):
            inputs = self.inputs(at, call)
            try:
                self.call(self.reference, inputs)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                words = " ".join(str(error).split())
                raise ConfigError(
                    f"model.sequence[{at - 1}] ({told(call)}): the model cannot take these inputs, even in eager: "
                    f"{type(error).__name__}: {words}"
                ) from error

    def _compiling(self, module: nn.Module) -> Callable[..., Any]:
        """What compiles when it is first called: torch.compile, or what the device has instead of it."""
        target, backend, keywords = self.checked.target, self.materialised.backend, self.materialised.compile_keywords
        mode = self.experiment.mode.name
        if self.experiment.compiler[EXPORT] and target.exports(mode):
            return lambda *args: target.export(backend, module, args, keywords["dynamic"])
        if self.experiment.compile.cache and target.caches(mode):
            return target.cached(backend, module, keywords["dynamic"])
        return backend.torch_compile(module, **keywords)

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        self.compiled  # noqa: B018  makes them
        return tuple(self.materialised.backend.compilations)

    @property
    def compiled_once(self) -> bool:
        """Nothing was compiled since the first call."""
        self.compiled  # noqa: B018  makes the first call
        return len(self.materialised.backend.entered_at) == self._entered_first

    @property
    def promises_bits(self) -> bool:
        """Replay must equal eager bit for bit: the mode records kernels, and every pass kept the bits of its graph."""
        return self.experiment.mode.name != "max-autotune" and all(record.exact for record in self._pass_records)

    @property
    def declared(self) -> Tolerance:
        """What the contracts of the passes allow the results to be off by: the sum over all that were not exact."""
        from npucompose.schema.tolerance import Tolerance

        records = self._pass_records
        return Tolerance(sum(record.rtol for record in records), sum(record.atol for record in records))

    @property
    def _pass_records(self) -> list[PassRecord]:
        return [record for compilation in self.compilations for record in compilation.passes]

    @cached_property
    def detached(self) -> DetachedHandle | None:
        """The handle that skips torch.compile's guards; None where nothing is captured, `why_attached` says why."""
        self.why_attached = ""
        lowered = [c.lowered for c in self.compilations if c.lowered is not None]
        if not self.materialised.pre.can.captures:
            self.why_attached = f"mode={self.experiment.mode.name} records nothing"
            return None
        if not self.checked.target.detaches:
            self.why_attached = (
                f"target={self.checked.target.name}: its own compiler replays, from inside torch.compile"
            )
            return None
        from npucompose.targets.detached import detach_call

        try:
            inputs = self.inputs(0)
            return detach_call(lowered, lambda: self.call(self.compiled, inputs), tuple(inputs.values()), {})
        except CaptureError as error:
            self.why_attached = str(error)
            return None
