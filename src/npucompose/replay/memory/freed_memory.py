"""Memory that compiling has freed goes back to the system, where a process compiles a model and then only runs it.

glibc keeps what was allocated in small pieces and, once a large piece has been freed, in larger ones too: what Inductor
and the contests of kernels used stays with the process, as free memory. `malloc_trim` (glibc) hands it back. It takes
huge pages apart in doing so, on which the weights of recordings may lie with free memory between them.
"""

from __future__ import annotations

import ctypes
import sys

from npucompose.replay.memory.huge_pages import MOVED


def hand_back() -> bool:
    """Whether memory was handed back: while no weights lie on huge pages, and where the C library is glibc."""
    if MOVED.is_set() or not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
