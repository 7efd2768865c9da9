"""What a capture sees: its calls, and a trace of its tasks.

A device records without executing; here every call runs once, and is undone after.

# Note [What NPUGraph.debug_dump writes]
Each task of a captured graph as an event of a Chrome trace.
The form is the one that the wheel's readers take (npu/_npugraph_utils.py, tools/aclgraph_check). A device also writes
how many cores a kernel takes, which nobody knows without CANN: npugraph_ex's deadlock check finds the streams and
events of the graph here, and no kernel that it would count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from npu_simulator.randomness import draws
from npucompose.npu.capture.simulated.kernels import custom_body
from npucompose.npu.capture.simulated.memory import USE, written_by

FACTORIES = frozenset(
    {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
)
"""They give memory and compute nothing, so that a replay has nothing to do."""
MEMORY_ONLY = ("_get_max_workspace", "_infer_output")
"""Operators whose names end so give memory for another one to work in or to write, of a size that the host knows."""
HOST_EFFECTS = frozenset({"npu::save_npugraph_tensor", "npu::print_npugraph_tensor"})
"""They write a file or print: a capture only notes them, every replay does them."""
CONTROL = ("air", "npugraph_ex")
"""Namespaces of scopes, records and waits: they give the device an order and compute nothing."""


@define(kw_only=True, eq=False)
class RecordedCall:
    """One recorded call: a replay runs it again, into the memory of `out`."""

    func: torch._ops.OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any
    stream: int

    @property
    def computes(self) -> bool:
        """Whether a device would run a kernel: it writes something, or gives memory that none of its inputs has.

        `_unsafe_view` is no view by its schema and gives its input's memory all the same.
        """
        name = self.func._schema.name
        bare = name in FACTORIES or name.endswith(MEMORY_ONLY)
        if bare or name.partition("::")[0] in CONTROL or self.func.is_view:
            return False
        if self.func._schema.is_mutable or "out" in self.kwargs or name in HOST_EFFECTS:
            return True
        return not storages(self.out) <= storages([*self.args, *self.kwargs.values()])

    def run(self) -> None:
        new = self.func(*self.args, **self.kwargs)
        if self.func._schema.is_mutable:
            return
        for mine, made in zip(tensors(self.out), tensors(new), strict=True):
            if mine.data_ptr() != made.data_ptr():
                mine.copy_(made)


class MemoryBefore:
    """What memory from outside a capture looked like before the capture wrote it."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._kept:
            self._kept[storage._cdata] = (storage, storage.clone())

    def undo(self) -> None:
        for storage, before in self._kept.values():
            if storage.nbytes() != before.nbytes():
                storage.resize_(before.nbytes())
            storage.copy_(before)


class Recorder(TorchDispatchMode):
    """Asks the device about each call of a thread, and puts it on the tape of the graph that captures its stream."""

    supports_higher_order_operators = True

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (body := _python_of(func)) is not None:
            with self:  # its Python is run by the capture alone, and a replay runs the kernels that it starts
                return body(*args, **kwargs)
        if func._schema.name == USE:
            return func(*args, **kwargs)  # its kernel notes it on the device
        self.device.check(func, args, kwargs)
        graph = self.device.capturing
        if graph is None:
            return self._aside(func, args, kwargs)
        for tensor in written_by(func, args, kwargs):
            graph.keep(tensor.untyped_storage())
        out: Any = None
        if func._schema.name not in HOST_EFFECTS:
            out = graph.randomness.draw(func, args, kwargs) if draws(func) else func(*args, **kwargs)
        if func._schema.name == "aten::empty_like":
            # Note [Capture on real values]
            # TorchAir captures on empty clones of the inputs (clone_input), because a device does not execute while
            # it captures. This capture does execute: on uninitialised memory an index would be out of range.
            out.copy_(args[0])
        graph.taped_call(RecordedCall(func=func, args=args, kwargs=kwargs, out=out, stream=self.device.current))
        return out

    def _aside(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call on a stream that no capture holds: it runs now, and in no replay."""
        out = func(*args, **kwargs)
        if RecordedCall(func=func, args=args, kwargs=kwargs, out=out, stream=self.device.current).computes:
            self.device.launched(str(func))
        return out


@contextmanager
def _set_aside(below: TorchDispatchMode | None = None) -> Iterator[None]:
    """Without the dispatch modes above `below`, or without any."""
    above: list[TorchDispatchMode] = []
    while (top := _get_current_dispatch_mode()) is not None and top is not below:
        above.append(top)
        _pop_mode()
    try:
        yield
    finally:
        for mode in reversed(above):
            _push_mode(mode)


def enter_below(mode: TorchDispatchMode) -> None:
    """Enter `mode` below those that are entered already.

    As a device does, it sees the calls that are left when they are done: torch.npu.graph enters its own mode, which
    puts attention into task groups, before it begins to capture.
    """
    with _set_aside():
        mode.__enter__()


def leave_below(mode: TorchDispatchMode) -> None:
    with _set_aside(mode):
        mode.__exit__(None, None, None)


def _python_of(func: Any) -> Callable[..., Any] | None:
    """The Python of torch.cond, and of an operator that torch.library.custom_op made."""
    if func is torch.ops.higher_order.cond:
        return lambda pred, yes, no, operands=(): (yes if pred else no)(*operands)
    if isinstance(func, HigherOrderOperator):
        raise NotImplementedError(f"simulator: a capture of torch.ops.higher_order.{func.name()} is not known here.")
    return custom_body(func)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result, lists opened."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def storages(value: Any) -> set[int]:
    """The memory of the tensors of an argument or a result."""
    return {tensor.untyped_storage()._cdata for tensor in tensors(value)}


KERNEL, RECORD, WAIT = "KERNEL", "EVENT_RECORD", "EVENT_WAIT"


def chrome_trace(tasks: Iterable[tuple[str, str | int, int]]) -> list[dict[str, Any]]:
    """Tasks, each (kind, kernel or event, stream), as a device dumps them; see Note [What NPUGraph.debug_dump writes].

    A record gets a handle of its own, which the waits after it name; an event that this graph did not record is waited
    for by its own number, which no record has. Times are the order of the tasks.
    """
    handles: dict[str | int, int] = {}
    found: list[dict[str, Any]] = []
    for number, (kind, what, stream) in enumerate(tasks, 1):
        name = str(what)
        if kind == RECORD:
            handles[what] = number
        if kind != KERNEL:
            name = f"{kind}_{handles[what]}" if what in handles else f"{kind}_external{what}"
        args = {"Task Id": number, "Stream Id": stream, "Task Type": kind}
        found.append(
            {"name": name, "pid": "npugraph", "tid": f"stream{stream}", "ph": "X", "ts": float(number), "dur": 0.5,
             "args": args}
        )  # fmt: skip
    return found
