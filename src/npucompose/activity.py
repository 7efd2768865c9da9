"""What this process is doing now, in a few words, for whoever waits for it. Knows nobody who listens.

A worker passes it on to the terminal: `compile: tracing the model … 12 s`.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def listen(listener: Callable[[str], None]) -> None:
    """Call it with every activity that begins from now on in this process."""
    _listeners.append(listener)


def doing(words: str) -> None:
    """Say what begins: `tracing the model`. Costs nothing where nobody listens."""
    for listener in _listeners:
        listener(words)
