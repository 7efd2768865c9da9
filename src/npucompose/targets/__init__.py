"""Devices by name. A new target is one file, one line here, one YAML and one test.

Here may live what compiles, places and times on a device; not how a recording works (`replay`), and no rule of options.
"""

from __future__ import annotations

from npucompose.registry import Registry
from npucompose.targets.base import Target

TARGETS: Registry[type[Target]] = Registry(
    kind="target",
    base=Target,
    group="npucompose.targets",
    built_in=(
        ("cpu", "npucompose.targets.cpu:CpuTarget"),
        ("cuda", "npucompose.targets.cuda:CudaTarget"),
        ("npu", "npucompose.targets.npu:NpuTarget"),
        ("npu_offline", "npucompose.targets.npu_offline:NpuOfflineTarget"),
        ("null_device", "npucompose.targets.null_device:NullDevice"),
    ),
)
