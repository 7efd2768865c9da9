"""Run as a process of its own: which device this is, as one line of JSON; fails where there is none.

`device.py TARGET`. {"name": "Ascend910B2", "count": 8, "torch_npu": "2.13.0", "cann": "8.5.0", …}.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from typing import Any

import torch

from npucompose.targets import TARGETS


def main(name: str) -> None:
    target: Any = TARGETS.get(name)()
    target.load_platform("max-autotune")
    import torch_npu  # type: ignore[import-not-found]

    npu: Any = torch.npu  # type: ignore[attr-defined]
    on_a_device = target.platform() == "device"
    found = {
        "name": npu.get_device_name(0) if on_a_device else "simulated",
        "count": npu.device_count() if on_a_device else 0,
        "cann": torch_npu.npu.utils.get_cann_version(module="CANN") if on_a_device else None,
        "platform": target.platform(),
        "torch_npu": target.package_version(),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
    }
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
