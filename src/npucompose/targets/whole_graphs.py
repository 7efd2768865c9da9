"""Calls of torch.compile(fullgraph=True) from several threads.

# Note [One counter for all threads]
Since torch 2.12 such a call raises where no compiled frame ran in it. torch 2.12 and 2.13 count the frames in one
variable of the process (pytorch#185138 gives each thread its own), which each call begins and, twice, ends: of three
threads one ends the second's count, and what the second then looks at is the third's, which is 0. A call that has run,
with all that it wrote, raises "found no compiled frames". Here a call ends its own count once, and is not asked for it
where another thread's call was under way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from attrs import define, field
from torch._dynamo import eval_frame

NAME = "set_fullgraph_compiled_frame_count"
OUTSIDE = -1
"""What torch's counter holds, and is set to, where no such call is under way."""


@define(eq=False)
class CountByThread:
    """`self(value)` is torch's `count(value)`: sets the counter, and answers with what it held."""

    count: Callable[[int], int]
    _lock: Any = field(factory=threading.Lock)
    _inside: dict[int, bool] = field(factory=dict[int, bool])
    """{thread with a call under way: another one's was, meanwhile}."""

    def __call__(self, value: int) -> int:
        with self._lock:
            return self._left() if value == OUTSIDE else self._entered(value)

    def forked(self) -> None:
        """A child has the thread that forked, and no other."""
        me = threading.get_ident()
        self._lock = threading.Lock()
        self._inside = {me: self._inside[me]} if me in self._inside else {}

    def _entered(self, value: int) -> int:
        me = threading.get_ident()
        nested, held = me in self._inside, self.count(value)
        if nested:
            return held
        self._inside.update(dict.fromkeys(self._inside, True))
        self._inside[me] = bool(self._inside)
        return OUTSIDE

    def _left(self) -> int:
        overlapped = self._inside.pop(threading.get_ident(), False)
        held = OUTSIDE if self._inside else self.count(OUTSIDE)
        return max(held, 1) if overlapped else held


@cache
def count_by_thread() -> None:
    """From now on, in this process; nothing where torch has no such counter, or one for each thread."""
    count = getattr(eval_frame, NAME, None)
    if count is not None and not isinstance(count, CountByThread) and _is_shared(count):
        by_thread = CountByThread(count)
        setattr(eval_frame, NAME, by_thread)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=by_thread.forked)


def _is_shared(count: Callable[[int], int]) -> bool:
    before, seen = count(0), list[int]()
    asking = threading.Thread(target=lambda: seen.append(count(before)))
    asking.start()
    asking.join()
    count(before)
    return seen == [0]
