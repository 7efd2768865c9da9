"""A control group for one job, where this machine has them (version 2) and lets us: it is killed as one, and no process
leaves it by forking. Everywhere else `make` says None, and the supervisor does without.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

KILL = "cgroup.kill"
MEMBERS = "cgroup.procs"
REMOVE_S = 2.0


def make(program: str) -> str | None:
    """The folder of a new group, named after the program, below the one that this process is in."""
    try:
        own = _own()
        if own is None:
            return None
        folder = own / f"{program}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.mkdir()
    except OSError:
        return None
    if not (folder / KILL).exists():  # a kernel before 5.14
        remove(str(folder))
        return None
    return str(folder)


def enter(folder: str) -> None:
    """Move this process there; whoever it forks is there too."""
    with contextlib.suppress(OSError):
        (Path(folder) / MEMBERS).write_text("0")


def kill(folder: str) -> None:
    """Everybody in it, at once."""
    with contextlib.suppress(OSError):
        (Path(folder) / KILL).write_text("1")


def remove(folder: str) -> None:
    """With the groups that were made in it; its last processes may take a moment to be gone."""
    deadline = time.monotonic() + REMOVE_S
    while time.monotonic() < deadline:
        try:
            for place, _, _ in os.walk(folder, topdown=False):
                os.rmdir(place)
        except OSError:
            time.sleep(0.01)
        else:
            return


def _own() -> Path | None:
    """The group of this process: `0::/user.slice` below the place where version 2 is mounted."""
    line = next((one for one in Path("/proc/self/cgroup").read_text().splitlines() if one.startswith("0::")), None)
    mounts = [one.split() for one in Path("/proc/self/mounts").read_text().splitlines()]
    place = next((words[1].replace(r"\040", " ") for words in mounts if words[2] == "cgroup2"), None)
    if line is None or place is None:
        return None
    folder = Path(place) / line.removeprefix("0::").lstrip("/")
    return folder if os.access(folder / MEMBERS, os.W_OK) else None
