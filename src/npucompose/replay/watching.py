"""Who makes a call wants to know which graphs it ran: their recordings, inputs and results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

if TYPE_CHECKING:
    from npucompose.replay.interface import Recording


@frozen(eq=False)
class SeenCall:
    """A call of one graph: its recording (None: it ran as it is), inputs and results."""

    recording: Recording | None
    inputs: list[Any]
    outputs: list[Any]
    capture_limit: int
    cut: str = ""
    """How the graph is cut, whose parts are seen too; empty for a graph that is not."""


@define(eq=False)
class _Watcher:
    thread: int = field(factory=threading.get_ident)
    calls: list[SeenCall] = field(factory=list)


watchers: list[_Watcher] = []
"""Of all threads: where there is none, a call has nothing to note."""


@contextlib.contextmanager
def watching() -> Iterator[list[SeenCall]]:
    """The calls of graphs that this thread makes inside, in order."""
    watcher = _Watcher()
    watchers.append(watcher)
    try:
        yield watcher.calls
    finally:
        watchers.remove(watcher)


def is_watched() -> bool:
    """Whether somebody watches the calls of this thread: they are made for the sake of their recordings."""
    return any(watcher.thread == threading.get_ident() for watcher in watchers)


def note(call: SeenCall) -> None:
    for watcher in watchers:
        if watcher.thread == threading.get_ident():
            watcher.calls.append(call)
