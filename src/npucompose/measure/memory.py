"""Memory of this process. Knows no device."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

PROC_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """The most memory this process has had resident, in bytes.

    # Note [ru_maxrss is inherited]
    On Linux `getrusage(...).ru_maxrss` survives exec: a worker started by a process of 300 MB reports 300 MB on its
    first line. VmHWM belongs to the address space and starts anew, so it is asked first. Both count KiB on Linux;
    ru_maxrss counts bytes on macOS.
    """
    if PROC_STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", PROC_STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
