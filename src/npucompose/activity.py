"""What this process is doing now, in a few words, for whoever waits for it. Knows nobody who listens.

A worker passes it on to the terminal: `compile: tracing the model … 12 s`. What goes on beside it, in a thread of its
own, is named as well: `compile: tracing the model, building the native replayer … 12 s`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []
_lock = threading.Lock()
_now = ""
_beside: list[str] = []


def listen(listener: Callable[[str], None]) -> None:
    """Call it with every activity that begins from now on in this process."""
    _listeners.append(listener)


def doing(words: str) -> None:
    """Say what begins: `tracing the model`. Costs nothing where nobody listens."""
    global _now
    with _lock:
        _now = words
        _notify()


@contextmanager
def beside(words: str) -> Iterator[None]:
    """What a thread does meanwhile, until it is done."""
    with _lock:
        _beside.append(words)
        _notify()
    try:
        yield
    finally:
        with _lock:
            _beside.remove(words)
            _notify()


def _notify() -> None:
    words = ", ".join(filter(None, (_now, *dict.fromkeys(_beside))))
    for listener in _listeners if words else ():
        listener(words)
