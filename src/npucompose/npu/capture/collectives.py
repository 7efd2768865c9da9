"""Collectives of torch.distributed on one machine: no rank is asked, and each runs on a stream of its communicator.

A collective begins after the current stream. With `async_op=True` the current stream goes on without it until
`work.wait()`; without, it waits at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npucompose.npu.capture.machine import SimulatedMachine
from npucompose.races import Touch

_TENSORS: Mapping[str, str] = {
    "all_reduce": "tensor+", "all_gather": "tensor_list! tensor",
    "all_gather_into_tensor": "output_tensor! input_tensor", "all_to_all": "output_tensor_list! input_tensor_list",
    "all_to_all_single": "output! input", "broadcast": "tensor+", "gather": "tensor gather_list!", "irecv": "tensor!",
    "isend": "tensor", "recv": "tensor!", "reduce": "tensor+", "reduce_scatter": "output! input_list",
    "reduce_scatter_tensor": "output! input", "scatter": "tensor! scatter_list", "send": "tensor",
}  # fmt: skip
"""{function: its first parameters}: `!` is written, `+` is read and written, all else is read."""
_ALWAYS_ASYNC = ("isend", "irecv")


class Work:
    """What a collective that was not waited for gives."""

    def __init__(self, machine: SimulatedMachine, done: int, line: Callable[[], str | None]) -> None:
        self._machine, self._done, self._line = machine, done, line

    def wait(self, timeout: Any = None) -> bool:
        """The current stream waits; the host does not."""
        self._machine.runtime.wait(self._done, self._machine.stream, self._line())
        return True

    def is_completed(self) -> bool:
        self._machine.runtime.wait_for_event("work.is_completed()", self._line(), self._done)
        return True


def collectives(machine: SimulatedMachine, line: Callable[[], str | None]) -> Mapping[str, Any]:
    """{name in torch.distributed: the function that stands there}."""
    return {
        **{name: _collective(name, machine, line) for name in _TENSORS},
        "barrier": lambda *_, **__: machine.runtime.synchronise("dist.barrier()", line()),
        "get_rank": lambda group=None: 0,
        "get_world_size": lambda group=None: 1,
        "is_initialized": lambda: True,
    }


def _collective(name: str, machine: SimulatedMachine, line: Callable[[], str | None]) -> Callable[..., Any]:
    def run(*args: Any, async_op: bool = False, **named: Any) -> Any:
        where = line()
        touches = _touches(name, machine, args, named)
        work = Work(machine, machine.runtime.collective(f"dist.{name}", machine.stream, where, touches), line)
        if async_op or name in _ALWAYS_ASYNC:
            return work
        work.wait()
        return None

    return run


def _touches(name: str, machine: SimulatedMachine, args: Sequence[Any], named: Mapping[str, Any]) -> list[Touch]:
    """What it does to its tensors, whose memory the process group keeps (TN distributed/ProcessGroupHCCL.cpp:4167)."""
    found: list[Touch] = []
    for at, parameter in enumerate(_TENSORS[name].split()):
        word = parameter.rstrip("!+")
        given = args[at] if at < len(args) else named.get(word)
        machine.memory.keep(given)
        writes = parameter != word
        found += machine.memory.touching(given, reads=not parameter.endswith("!"), writes=writes)
    return found
