"""What a child of os.fork() has to put right: of its parent's threads it has only the one that forked.

executor/src/forks.h is the same for the replayer in C++.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()
_forks = 0


def lock() -> Any:
    """A threading.RLock that a child finds open where another thread of its parent held it: nobody would let it go."""
    made = threading.RLock()
    _locks.add(made)
    return made


def count() -> int:
    """How many forks lie between the process that imported this and the present one."""
    return _forks


def _in_child() -> None:
    global _forks
    _forks += 1
    for one in _locks:
        if not one._is_owned():
            one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
