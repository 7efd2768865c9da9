"""Run code that a compiler generated once on real values and write down what a replay has to do.

Such code is Python that makes buffers, calls kernels by their names and torch's operators between them. It is run as it
is: it tells an `Observer` of each buffer, each view and each kernel, and a dispatch mode sees the operators. What each
call becomes is decided by `calls`, as for an FX graph. A tensor whose memory nobody told of ends the recording: nothing
is guessed.

Sizes that are symbols in the code are numbers in the run: a recording is of one signature.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import define, field, frozen
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.errors import CaptureError
from npucompose_replay import gate
from npucompose_replay.capture.kernels import Computes
from npucompose_replay.capture.ledger import Held
from npucompose_replay.capture.recorder import GraphRecorder, for_inference, recorder_of
from npucompose_replay.gate import NOT_RUN
from npucompose_replay.generated import GeneratedKernel, arguments
from npucompose_replay.operands import mapped, storage_of
from npucompose_replay.plan import Plan, Register, RestOfGraph, Root

aten = torch.ops.aten


class Observer(Protocol):
    """What generated code tells while it runs."""

    def made(self, buffer: torch.Tensor) -> torch.Tensor:
        """A buffer without a value; the same tensor goes back."""
        ...

    def laid(self, view: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
        """A tensor laid over the memory of another; the same tensor goes back."""
        ...

    def launch(self, kernel: GeneratedKernel, given: Sequence[Any]) -> None:
        """A kernel is to be called with its parameters in order: the observer calls it."""
        ...


class GeneratedCode(Protocol):
    """Code that a compiler made of a graph."""

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The tensors that it names, by their names."""
        ...

    def run(self, inputs: list[Any], observer: Observer) -> Sequence[Any]: ...


def record_call(
    code: GeneratedCode, inputs: Sequence[Any], *, finish: bool, computes: Computes | None = None
) -> tuple[Plan, list[Any]]:
    """The plan of `code` for the signature of `inputs`, and the results of the run that was recorded, which counts.

    The run is made to its end whatever happens. CaptureError for what a recording cannot follow: with `finish` the run
    counts all the same and its results are the error's `outputs`; otherwise memory and RNG are as they were.
    """
    inference = torch.is_inference_mode_enabled()

    def returned(values: Sequence[Any]) -> list[Any]:
        return [for_inference(value) if inference else value for value in values]

    with recorder_of(fx.GraphModule({}, fx.Graph()), inputs, None, CodeRecorder) as recorder:
        recorder.calls.computes = computes
        try:
            plan, refusal = recorder.run_code(code, inputs)
            if refusal is not None and not finish:
                raise refusal
            results = returned(recorder.results(inputs))
            recorder.commit(inputs)
        finally:
            recorder.forget()
        if refusal is not None:
            refusal.outputs = results
            raise refusal
    assert plan is not None
    return plan, results


@frozen(eq=False)
class _Known:
    """A tensor that is alive, as the recording has it."""

    root: Root
    register: Register | None
    whole_input: int | None
    storage: int
    alive: weakref.ref[torch.Tensor]


@define(kw_only=True, eq=False)
class CodeRecorder(GraphRecorder):
    """`run_code(code, inputs)`; it is the code's `Observer`."""

    refusal: gate.Refused | None = None
    """Why the run that is under way is not recorded any further."""
    _alive: dict[int, _Known] = field(factory=dict)
    """By id; an entry goes with its tensor."""
    _constants: dict[int, torch.Tensor] = field(factory=dict)
    """Of the code, by their storage."""
    _opaque: set[int] = field(factory=set)
    """Ids of constants in a layout of a library's own: operands that nobody looks into."""
    _busy: bool = False
    """The operators that come now are the recorder's own."""

    def run_code(self, code: GeneratedCode, inputs: Sequence[Any]) -> tuple[Plan | None, gate.Refused | None]:
        for constant in code.constants.values():
            if constant.layout is torch.strided:
                self._constants[storage_of(constant)] = constant
            else:
                self._opaque.add(id(constant))
        given = [self._given(index, value) for index, value in enumerate(inputs)]
        with _Operators(self):
            results = code.run(given, self)
        node = self._node("output", "output")
        self.returned = self._returned(results)
        if self.refusal is None:
            try:
                return self.planned(node, self.returned), None
            except CaptureError as error:
                self.refusal = error if isinstance(error, gate.Refused) else gate.Refused(str(error), reason=str(error))
        return None, self.refusal

    def forget(self) -> None:
        """Results belong to the caller from here on: in the circle of this object, its tensors' weak references and
        what these call, they would live until the garbage collector comes."""
        self.returned = []
        self._alive.clear()

    def rest(self, node: fx.Node) -> RestOfGraph | None:
        """None: generated code has no nodes to go on from."""
        return None

    # -- what the code tells

    def made(self, buffer: torch.Tensor) -> torch.Tensor:
        if self.refusal is None:
            self._keep(Held(buffer, Root(kind="pool", nbytes=buffer.untyped_storage().nbytes())))
        return buffer

    def laid(self, view: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
        if self.refusal is None:
            self._guarded(lambda: self._keep(self.calls.laid(self._held(over), view)))
        return view

    def launch(self, kernel: GeneratedKernel, given: Sequence[Any]) -> None:
        self.called(torch.ops.air.generated.default, arguments(kernel, given), {}, kernel.name)

    # -- operators

    def called(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "") -> Any:
        """Run one operator, and record it as long as that goes."""
        if self.refusal is not None or self._busy:
            return op(*args, **kwargs)
        node = self._node(op, name or op._schema.name.split("::")[1])

        def recorded() -> Any:
            held = [mapped(self._held, arg) for arg in args]
            value = self.calls.record(node, op, held, {key: mapped(self._held, arg) for key, arg in kwargs.items()})
            return mapped(self._kept, value)

        done = self._guarded(recorded)
        if self.refusal is None:
            return done
        if self.refusal.__cause__ is not None:
            raise self.refusal.__cause__  # the model's own error, which the code raises too
        return op(*args, **kwargs) if self.refusal.result is NOT_RUN else self.refusal.result

    def _guarded(self, act: Callable[[], Any]) -> Any:
        self._busy = True
        try:
            return act()
        except gate.Refused as refusal:
            self.refusal = refusal
        finally:
            self._busy = False

    def _node(self, target: Any, name: str) -> fx.Node:
        """What errors and steps are named by."""
        graph = self.graph_module.graph
        if target == "output":
            return graph.create_node("output", "output", (None,))
        return graph.create_node("call_function", target, name=name)

    # -- tensors

    def _given(self, index: int, value: Any) -> Any:
        return self._kept(self._placeholder(index, value))

    def _returned(self, results: Sequence[Any]) -> list[Any]:
        """A value is one object, however often it is returned."""
        found: dict[int, Any] = {}
        for value in results:
            if id(value) not in found:
                found[id(value)] = self._held_if_known(value)
        return [found[id(value)] for value in results]

    def _held_if_known(self, value: Any) -> Any:
        try:
            return self._held(value)
        except gate.Refused as refusal:
            self.refusal = self.refusal or refusal
            return value

    def _kept(self, value: Any) -> Any:
        return self._keep(value) if isinstance(value, Held) else value

    def _keep(self, held: Held) -> torch.Tensor:
        tensor = held.tensor
        before = self._alive.get(id(tensor))
        if before is not None:
            return tensor
        self.ledger.adopt(held)
        self.ledger.hold(held)
        key, storage, root = id(tensor), held.storage, held.root

        def gone(_: Any) -> None:
            if self._alive.pop(key, None) is not None:
                self.ledger.let_go(storage, root)

        self._alive[key] = _Known(root, held.register, held.whole_input, storage, weakref.ref(tensor, gone))
        return tensor

    def _held(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in self._opaque:
            return value
        known = self._alive.get(id(value))
        if known is not None:
            return Held(value, known.root, known.register, known.whole_input)
        held = self._constant(value)
        self._keep(held)
        return held

    def _constant(self, value: torch.Tensor) -> Held:
        if value.layout is torch.strided:
            storage = storage_of(value)
            root = self.ledger.roots.get(storage)
            if root is None and storage in self._constants:
                constant = self._constants[storage]
                root = Root(kind="attribute", nbytes=constant.untyped_storage().nbytes(), tensor=constant)
            if root is not None and root.kind != "fresh":
                return Held(value, root)
        node = self._node(aten.alias.default, "tensor")
        raise gate.refused(node, f"nobody told where {value.dtype}{list(value.shape)} was made.")


class _Operators(TorchDispatchMode):
    def __init__(self, recorder: CodeRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.called(func, args, kwargs or {})
