"""Task groups: recorded calls that get new arguments between replays, by the rules of the runtime.

A group is what a capture records on one stream between graph_task_group_begin and _end. Later, between
graph_task_update_begin and _end, kernels launched on a stream that does not capture give their arguments to the tasks
of the group, in order, and do not run.

# Note [What a task is here]
On a device a task is a kernel, and an operator may be several. The runtime takes an update by other kernels if they
are as many and of the same types. Here one operator is one task, so an update by another operator is refused: whether
a device takes it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define
from torch.utils._python_dispatch import TorchDispatchMode

from npu_simulator.device import SimulatedDevice
from npu_simulator.recorder import RecordedCall, enter_below, leave_below
from npu_simulator.refusals import library_error
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.simulated.memory import written_by


@define(kw_only=True, eq=False)
class TaskGroup:
    """torch_npu._C._NPUTaskGroupHandle."""

    calls: list[RecordedCall]
    updated_by: int | None = None
    """The stream that updates it now."""

    @property
    def task_group(self) -> int:
        """Address of the runtime's group."""
        return id(self)


class Updater(TorchDispatchMode):
    """Gives the tasks of a group new arguments, one for each kernel that is launched on the updating stream."""

    def __init__(self, device: SimulatedDevice, stream: int, group: TaskGroup) -> None:
        super().__init__()
        self.stream, self.group, self.updated = stream, group, 0
        self._device = device

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._device.current != self.stream:
            return func(*args, **kwargs)
        out = _results(func, args, kwargs)
        new = RecordedCall(func=func, args=args, kwargs=kwargs, out=out, stream=self.stream)
        if new.computes:
            self._update(new)
        return out

    def _update(self, new: RecordedCall) -> None:
        if self.updated == len(self.group.calls):
            raise library_error("group_has_no_further_task", stream=self.stream, what=str(new.func))
        task = self.group.calls[self.updated]
        if task.func._schema.name != new.func._schema.name:
            raise RuntimeError(
                f"simulator: task {self.updated} of the group is {task.func}, and it is updated by {new.func}; whether "
                "a device takes that depends on the kernels of both, which no simulation knows."
            )
        task.func, task.args, task.kwargs, task.out = new.func, new.args, new.kwargs, new.out
        self.updated += 1


def _results(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the call returns though it does not run: what it would write, or memory of its own."""
    if func._schema.is_mutable or "out" in kwargs:
        found = list(written_by(func, args, kwargs))
        return found[0] if len(found) == 1 else found
    return func(*args, **kwargs)


class TaskGroups:
    """torch_npu._C._graph_task_*; what they refuse is in capture/rules.yaml and `checks.yaml`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._updating: dict[int, Updater] = {}

    def begin(self, stream: Any) -> None:
        self._device.runtime.group_begin(stream.stream_id, model_line())
        self._graph(stream).groups[stream.stream_id] = []

    def end(self, stream: Any) -> TaskGroup:
        """The handle; what has broken the group is raised again."""
        runtime, number = self._device.runtime, stream.stream_id
        runtime.group_end(number, model_line())
        graph, capture = self._graph(stream), runtime.capture_of(number)
        calls = graph.groups.pop(number)
        if graph.group_fault is not None:
            raise graph.group_fault
        if capture is None or capture.lost:
            self._device.refuse("task_group_broken", "graph_task_group_end of a broken group")
        self._device.ledger.note("task_group")
        return TaskGroup(calls=calls)

    def _graph(self, stream: Any) -> Any:
        graph = self._device.graph_of(stream.stream_id)
        assert graph is not None
        return graph

    def update_begin(self, stream: Any, handle: TaskGroup) -> None:
        number = stream.stream_id
        self._device.runtime.update_begin(number, model_line())
        if handle.updated_by is not None:
            self._device.runtime.update_end(number, model_line())
            raise library_error("group_updated_by_two", stream=number)
        handle.updated_by = number
        self._updating[number] = Updater(self._device, number, handle)
        enter_below(self._updating[number])

    def update_end(self, stream: Any) -> None:
        number = stream.stream_id
        self._device.runtime.update_end(number, model_line())
        updater = self._updating.pop(number)
        leave_below(updater)
        updater.group.updated_by = None
        if left := updater.group.calls[updater.updated :]:
            tasks = ", ".join(str(task.func) for task in left)
            raise library_error("group_has_further_tasks", stream=number, what=tasks)
        self._device.ledger.note("task_update", f"{updater.updated} calls")

    def update_attention(self, stream: Any, handle: TaskGroup, event: Any, *args: Any, **kwargs: Any) -> Any:
        """torch_npu._C._npu_fused_infer_attention_score_out_graph: one attention is updated, and the event recorded."""
        out = kwargs["out"]
        if len(out) != 2:
            raise RuntimeError(f"out must have 2 tensors (attention_out, softmax_lse), but got {len(out)}")
        self.update_begin(stream, handle)
        torch.ops.npu.npu_fused_infer_attention_score.out(*args, **kwargs)
        self.update_end(stream)
        event.record(stream)
        return tuple(out)
