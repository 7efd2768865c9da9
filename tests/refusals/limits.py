"""An end to what a hostile input can cost: processor time, waiting, memory. What exceeds one of them is said, not hung.

They hold for whatever runs inside of them in this process; memory is what is asked for beyond what is held already.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

PROCESSOR_S = 5.0
WAITING_S = 60.0
"""Long: other work on the machine is no fault of the input's. It ends what waits for a pipe."""
MEMORY = 512 << 20


class TooMuch(BaseException):
    """No Exception: nothing in the product may catch it."""


@contextmanager
def limited(processor_s: float = PROCESSOR_S, waiting_s: float = WAITING_S, memory: int = MEMORY) -> Iterator[None]:
    """TooMuch, or MemoryError, where the work inside takes more. For the main thread; Linux."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise TooMuch(signal.Signals(number).name)

    before = [signal.signal(number, end) for number in (signal.SIGPROF, signal.SIGALRM)]
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    signal.setitimer(signal.ITIMER_REAL, waiting_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)
