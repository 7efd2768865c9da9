"""Memory that compiling has freed goes back to the system, where a process compiles a model and then only runs it.

glibc keeps what was allocated in small pieces and, once a large piece has been freed, in larger ones too: what Inductor
and the contests of kernels used stays with the process, as free memory. `malloc_trim` (glibc) hands it back. It takes
huge pages apart in doing so where free memory lies between weights, which are moved again then.
"""

from __future__ import annotations

import ctypes
import sys

from npucompose_replay.memory.huge_pages import move_again


def hand_back() -> bool:
    """Whether memory was handed back: where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is None:
        return False
    trim(0)
    move_again()
    return True
