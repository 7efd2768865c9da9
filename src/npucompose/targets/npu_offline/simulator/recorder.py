"""Records what a capture sees. A device records without executing; here every call runs once, and is undone after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.simulator.recording import Recording

WAITS_FOR_HOST = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"})
"""Calls whose answer the host needs at once: illegal in a capture."""
FACTORIES = frozenset(
    {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
)
"""They give memory and compute nothing, so that a replay has nothing to do."""
HOST_EFFECTS = frozenset({"npu::save_npugraph_tensor"})
"""They write a file: a capture only notes them, every replay does them."""
USE = "aten::record_stream"
"""Tensor.record_stream: a note for the allocator."""
CONTROL = ("air", "npugraph_ex")
"""Namespaces of scopes, records and waits: they tell the device an order and compute nothing."""


@define(kw_only=True, eq=False)
class Call:
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
        if name in FACTORIES or name.partition("::")[0] in CONTROL or self.func.is_view:
            return False
        if self.func._schema.is_mutable or "out" in self.kwargs or name in HOST_EFFECTS:
            return True
        given = {_address(tensor) for tensor in tensors([*self.args, *self.kwargs.values()])}
        return any(_address(tensor) not in given for tensor in tensors(self.out))

    def run(self) -> None:
        new = self.func(*self.args, **self.kwargs)
        if self.func._schema.is_mutable:
            return
        for mine, made in zip(tensors(self.out), tensors(new), strict=True):
            if mine.data_ptr() != made.data_ptr():
                mine.copy_(made)


class Recorder(TorchDispatchMode):
    """Puts calls on a graph's tape and remembers what memory from outside looked like before it was written."""

    def __init__(self, graph: Recording) -> None:
        super().__init__()
        self.graph = graph
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._random = torch.get_rng_state()

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name == USE:
            return func(*args, **kwargs)  # its kernel tells the device
        if func._schema.name in WAITS_FOR_HOST:
            raise RuntimeError(f"{func} needs its answer on the host, which a capture cannot give.")
        written = list(_written(func, args, kwargs))
        for tensor in written:
            self._remember(tensor.untyped_storage())
        out: Any = None if func._schema.name in HOST_EFFECTS else func(*args, **kwargs)
        if func._schema.name == "aten::empty_like":
            # Note [Capture on real values]
            # TorchAir captures on empty clones of the inputs (clone_input), because a device does not execute while
            # it captures. This capture does execute: on uninitialised memory an index would be out of range.
            out.copy_(args[0])
        call = Call(func=func, args=args, kwargs=kwargs, out=out, stream=self.graph.device.current)
        self.graph.taped_call(call, written)
        return out

    def _remember(self, storage: torch.UntypedStorage) -> None:
        if storage.data_ptr() not in self.graph.blocks and storage._cdata not in self._before:
            self._before[storage._cdata] = (storage, storage.clone())

    def undo(self) -> None:
        """As before the capture: memory from outside, and the random numbers."""
        for storage, before in self._before.values():
            storage.copy_(before)
        torch.set_rng_state(self._random)


class Updater(TorchDispatchMode):
    """Between graph_task_update_begin and _end a call does not run: it gives a recorded task new arguments."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        super().__init__()
        self.tasks = [task for task in tasks if isinstance(task, Call)]
        self.updated = 0

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for call in self.tasks:
            if call.func is func:
                call.args, call.kwargs = args, kwargs or {}
                self.updated += 1
                return call.out
        raise RuntimeError(f"{func} is no task of the captured group: {', '.join(str(c.func) for c in self.tasks)}.")


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result, lists opened."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _written(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments that the schema says are written."""
    yield from tensors(kwargs.get("out"))  # torch_npu registers a list of outputs without saying that it is written
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "out":
            continue
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[index] if index < len(args) else kwargs.get(argument.name)
        yield from tensors(given)
