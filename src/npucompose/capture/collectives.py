"""Collectives of torch.distributed on one machine: no rank is asked, and each runs on a stream of its communicator.

A collective begins after the current stream. With `async_op=True` the current stream goes on without it until
`work.wait()`; without, it waits at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from npucompose.capture.machine import SimulatedMachine

_NAMES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast", "gather",
    "irecv", "isend", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip
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
        **{name: _collective(name, machine, line) for name in _NAMES},
        "barrier": lambda *_, **__: machine.runtime.synchronise("dist.barrier()", line()),
        "get_rank": lambda group=None: 0,
        "get_world_size": lambda group=None: 1,
        "is_initialized": lambda: True,
    }


def _collective(name: str, machine: SimulatedMachine, line: Callable[[], str | None]) -> Callable[..., Any]:
    def run(*args: Any, async_op: bool = False, **_: Any) -> Any:
        where = line()
        work = Work(machine, machine.runtime.collective(f"dist.{name}", machine.stream, where), line)
        if async_op or name in _ALWAYS_ASYNC:
            return work
        work.wait()
        return None

    return run
