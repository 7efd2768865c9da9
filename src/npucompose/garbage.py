"""Python's collector of garbage, out of the way of work that makes thousands of values that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No collection inside. A collection goes through all of torch's objects, which takes longer than most passes.

    For short stretches: what is garbage stays until the collector's next turn. Nests; of two threads that are inside
    at once the first to leave lets collections happen again, which costs the other one time and nothing else.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
