"""What can be read of this machine without loading anything."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


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


def usable_cores() -> int:
    """Cores that this process may run on, which a container or taskset may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
