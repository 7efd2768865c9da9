"""What can be read of this machine without loading anything, and a process without its collector of garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from attrs import define, field

CACHE_VARIABLE = "NPUCOMPOSE_CACHE"
THREAD_VARIABLES: tuple[str, ...] = (
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_DYNAMIC",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "MKL_DYNAMIC",
    "OPENBLAS_NUM_THREADS",
)
"""Environment variables that say how many threads a kernel takes and where they run; torch reads them as it loads."""


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, e.g. "Intel(R) Xeon(R) Processor".

    Arm kernels print no name, then the part numbers stand in; elsewhere Python's word for it has to do.
    """
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    named = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    if named:
        return named[1].strip()
    parts = re.findall(r"^CPU (?:implementer|part)\s*:\s*(\S+)", text, re.MULTILINE)[:2]
    return " ".join(["Arm", *parts]) if parts else platform.processor() or platform.machine()


@lru_cache(maxsize=256)
def installed_version(distribution: str) -> str | None:
    """`installed_version("torch")` is "2.13.0+cpu"; None where it is not installed. Read once in a process: a sweep
    asks for it at every point, and what is installed meanwhile is not what this process has loaded."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cores() -> frozenset[int]:
    """The cores that this process may use (its affinity, where the system tells)."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many they are."""
    return len(cores())


def thread_settings() -> dict[str, str]:
    """The THREAD_VARIABLES that are set; with the cores and `cpu_quota` they decide torch's number of threads."""
    return {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """How many cores' worth of time this process may use by its control group; None without such a limit.

    A container limited to 1.5 CPUs sees all cores of its machine and gets 1.5: the tightest limit of the group and of
    those above it, by version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`).
    """
    found: list[float] = []
    for line in own.read_text(encoding="utf-8").splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = groups / "cpu" if controllers else groups
        # Inside a container the path may be the host's, which is not there: then its own group lies at the top.
        found += [quota for folder in _upwards(top, path) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def _upwards(top: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _quota(group: Path) -> float | None:
    both, alone = group / "cpu.max", group / "cpu.cfs_quota_us"
    if both.is_file():
        quota, _, period = both.read_text(encoding="utf-8").strip().partition(" ")
    elif alone.is_file():
        quota = alone.read_text(encoding="utf-8").strip()
        period = alone.with_name("cpu.cfs_period_us").read_text(encoding="utf-8").strip()
    else:
        return None
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def cache_dir() -> Path:
    """NPUCOMPOSE_CACHE, else `npucompose` in the folder where this system keeps a user's caches."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "npucompose"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "npucompose" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npucompose"


def compilers() -> tuple[str, ...]:
    """C++ compilers in the order in which they are tried: CXX, then the usual names."""
    return tuple(dict.fromkeys(filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++"))))


def compiler() -> str | None:
    """The path of the first C++ compiler that is installed."""
    return next((found for found in map(shutil.which, compilers()) if found), None)


def processor() -> tuple[object, ...]:
    """What times of kernels depend on and no program changes: model, architecture, cores and their share."""
    return cpu_model(), platform.machine(), usable_cores(), cpu_quota()


@define
class Attendance:
    """`Attendance().share()` is how much of the time since it was made this process had a processor; 2.0 is two."""

    _wall_ns: int = field(factory=time.perf_counter_ns)
    _own_ns: int = field(factory=time.process_time_ns)

    def share(self) -> float:
        return (time.process_time_ns() - self._own_ns) / max(time.perf_counter_ns() - self._wall_ns, 1)


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


class _FullCollections:
    """`full_collections_put_off` of all threads: the first one in remembers the thresholds, the last one out puts them
    back."""

    NEVER = 1 << 30

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._thresholds = (0, 0, 0)

    def put_off(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(*self._thresholds[:2], self.NEVER)

    def allow(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                gc.set_threshold(*self._thresholds)


_full_collections = _FullCollections()


@contextlib.contextmanager
def full_collections_put_off() -> Iterator[None]:
    """No automatic collection of the oldest generation inside; the younger ones are collected as ever. Nests.

    For what loads modules and compiles: 580,000 objects come to stay, after every quarter more of them Python goes
    through all, and that takes a third of the time to the first replay of a small model. From Python 3.14 on, whose
    collector works by pieces, it changes nothing.
    """
    _full_collections.put_off()
    try:
        yield
    finally:
        _full_collections.allow()
