"""The processes of this machine as /proc shows them, none where there is none; what ties a process to its parent; and a
control group for one job, where this machine has them (version 2) and lets us: it is killed as one, and no process
leaves it by forking.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
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
    def from_pid(pid: int) -> Process | None:
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
        if name.isdecimal() and (process := Process.from_pid(int(name))) is not None:
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


def child_bell() -> tuple[int, int]:
    """A pipe, both ends never waited for, into which a byte falls whenever a child of this process ends."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the default would ring no bell
    return ends


def adopt_orphans() -> None:
    """Have the orphans below this process come to it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


GROUP_KILL = "cgroup.kill"
GROUP_MEMBERS = "cgroup.procs"
GROUP_REMOVE_S = 2.0


def make_group(program: str) -> str | None:
    """The folder of a new control group, named after the program, below the one that this process is in; None where
    there can be none: the supervisor does without.
    """
    try:
        own = _own_group()
        if own is None:
            return None
        folder = own / f"{program}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.mkdir()
    except OSError:
        return None
    if not (folder / GROUP_KILL).exists():  # a kernel before 5.14
        remove_group(str(folder))
        return None
    return str(folder)


def enter_group(folder: str) -> None:
    """Move this process there; whoever it forks is there too."""
    with contextlib.suppress(OSError):
        (Path(folder) / GROUP_MEMBERS).write_text("0")


def kill_group(folder: str) -> None:
    """Everybody in it, at once."""
    with contextlib.suppress(OSError):
        (Path(folder) / GROUP_KILL).write_text("1")


def remove_group(folder: str) -> None:
    """With the groups that were made in it; its last processes may take a moment to be gone."""
    deadline = time.monotonic() + GROUP_REMOVE_S
    while time.monotonic() < deadline:
        try:
            for place, _, _ in os.walk(folder, topdown=False):
                os.rmdir(place)
        except OSError:
            time.sleep(0.01)
        else:
            return


def _own_group() -> Path | None:
    """The group of this process: `0::/user.slice` below the place where version 2 is mounted."""
    line = next((one for one in Path("/proc/self/cgroup").read_text().splitlines() if one.startswith("0::")), None)
    mounts = [one.split() for one in Path("/proc/self/mounts").read_text().splitlines()]
    place = next((words[1].replace(r"\040", " ") for words in mounts if words[2] == "cgroup2"), None)
    if line is None or place is None:
        return None
    folder = Path(place) / line.removeprefix("0::").lstrip("/")
    return folder if os.access(folder / GROUP_MEMBERS, os.W_OK) else None
