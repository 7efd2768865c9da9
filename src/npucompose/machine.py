"""What can be read of this machine without loading anything."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

CACHE_VARIABLE = "NPUCOMPOSE_CACHE"


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
