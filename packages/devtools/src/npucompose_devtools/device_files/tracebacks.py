"""Python's tracebacks in a log of several processes: which line of whose code was being run. Knows no error code."""

from __future__ import annotations

import re
from collections import deque

from attrs import define, field, frozen

_PREFIX = re.compile(
    r"^(?:\([^()]{1,80}\) ?)*(?:(?:ERROR|WARNING|INFO|CRITICAL) [^\[\]]{0,40}\[[^\[\]]{1,80}\] ?)?"
    r"(?:\[\d{4}-\d\d-\d\d[^\]]{0,40}\] ?)?"
)
"""What servers put before each line: `(Worker_TP1 pid=4367) ERROR 06-17 11:49:59 [multiproc_executor.py:962] `."""
_PROCESS = re.compile(r"pid=(\d{1,10})|(?:RUNTIME|ASCENDCL|GE|HCCL)\((\d{1,10}),|\(PID:(\d{1,10}),")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9}), in (?P<function>\S{1,200})\s*$')
_NOT_THEIRS = re.compile(r"/(?:torch|torch_npu)/|/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<")
IN_A_THREAD = "Exception in thread "
GOES_ON = ("During handling of the above exception", "The above exception was the direct cause")
"""Between the tracebacks of one chain."""
BEGINS = "Traceback (most recent call last):"
"""Python's; the runtime's own begins with `TraceBack`."""
DEEPEST = 1_000
"""Frames that are kept of a traceback, the innermost."""
LONGEST = 160
"""Characters of a line of code that are kept."""


@frozen
class Frame:
    file: str
    line: int
    function: str
    code: str

    @property
    def words(self) -> str:
        """`model.py:12 in forward: n = x.item()`."""
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}: {self.code}"


def is_theirs(file: str) -> bool:
    """Whether a frame's file is neither torch's nor Python's own."""
    return not _NOT_THEIRS.search(file)


def without_prefix(line: str) -> str:
    """The line as the process wrote it."""
    return line[_PREFIX.match(line).end() :]  # type: ignore[union-attr]  # it matches nothing, too


def process_of(line: str) -> str | None:
    """The number of the process that a line names; None where it names none."""
    found = _PROCESS.search(line)
    return None if found is None else next(filter(None, found.groups()))


@define
class Tracebacks:
    """The newest traceback of each process, while a log is read line by line."""

    _frames: dict[str, deque[Frame]] = field(factory=dict[str, "deque[Frame]"])
    _waiting: dict[str, re.Match[str]] = field(factory=dict[str, re.Match[str]])
    in_thread: set[str] = field(factory=set[str])
    """Processes whose newest traceback is of a thread (`Exception in thread …`)."""
    _announced: set[str] = field(factory=set[str])
    """Processes whose next traceback is."""

    @property
    def processes(self) -> int:
        """How many have one."""
        return len(self._frames)

    @property
    def waits(self) -> bool:
        """Whether the next line may be the code of a frame."""
        return bool(self._waiting)

    def take(self, process: str, line: str) -> None:
        """`line` without its prefix."""
        if line.startswith(BEGINS):
            self._frames.pop(process, None)
            self._waiting.pop(process, None)
            (self.in_thread.add if process in self._announced else self.in_thread.discard)(process)
            self._announced.discard(process)
        elif line.startswith(IN_A_THREAD) or (line.startswith(GOES_ON) and process in self.in_thread):
            self._announced.add(process)
        elif found := _FRAME.match(line):
            self._flush(process)
            self._waiting[process] = found
        elif process in self._waiting:
            self._flush(process, line.strip())

    def _flush(self, process: str, code: str = "") -> None:
        waiting = self._waiting.pop(process, None)
        if waiting is not None:
            frame = Frame(waiting["file"], int(waiting["line"]), waiting["function"], code[:LONGEST])
            self._frames.setdefault(process, deque(maxlen=DEEPEST)).append(frame)

    def innermost(self, process: str) -> Frame | None:
        """The last frame that is neither torch's nor Python's own; None where there is none."""
        self._flush(process)
        theirs = [frame for frame in self._frames.get(process, ()) if is_theirs(frame.file)]
        return theirs[-1] if theirs else None
