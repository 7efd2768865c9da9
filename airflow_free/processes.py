"""The processes of this machine as /proc shows them, none where there is none; what ties a process to its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

PROC = Path("/proc")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@frozen(kw_only=True)
class Process:
    pid: int
    parent: int
    group: int
    session: int
    is_zombie: bool

    @staticmethod
    def of(pid: int) -> Process | None:
        """None when it is gone."""
        try:
            text = (PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        state, parent, group, session, *_ = text.rpartition(b")")[2].split()  # the name before may hold anything
        return Process(
            pid=pid, parent=int(parent), group=int(group), session=int(session), is_zombie=state in (b"Z", b"X")
        )

    def memory(self) -> int:
        """Bytes in memory that belong to no file; what a fork shares with its parent counts in both."""
        return self._sum_of("status", (b"RssAnon:", b"RssShmem:"))

    def share(self) -> int:
        """The same, of what several processes share a share; dearer to ask for."""
        return self._sum_of("smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))

    def _sum_of(self, name: str, fields: tuple[bytes, ...]) -> int:
        try:
            lines = (PROC / str(self.pid) / name).read_bytes().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(fields))

    def kill(self, *, with_group: bool) -> None:
        """SIGKILL; the group at once, so that none of it forks away meanwhile."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        if with_group and self.group > 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)


def everybody() -> Iterator[Process]:
    if not PROC.is_dir():
        return
    for name in os.listdir(PROC):
        if name.isdecimal() and (process := Process.of(int(name))) is not None:
            yield process


def below(pid: int) -> list[Process]:
    """Children of a process, their children and so on."""
    children: dict[int, list[Process]] = {}
    for process in everybody():
        children.setdefault(process.parent, []).append(process)
    found, ahead = [], [pid]
    while ahead:
        own = children.pop(ahead.pop(), [])
        found += own
        ahead += [process.pid for process in own]
    return found


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends (Linux); if it ended before we asked, end now."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            print(f"prctl(PR_SET_PDEATHSIG) failed ({reason}): if the parent is killed, this worker stays behind")
    if os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")


def adopt_orphans() -> None:
    """Have the orphans below this process come to it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
