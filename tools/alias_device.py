"""The simulated runtime as a device for scripts of others: memory that is asked for on `npu` is the CPU's.

`npucompose` compiles for an NPU without one and needs no eager device; a public test asks for one in its first line.
Here `x.npu()`, `torch.ones(3, device="npu")` and `x.to("npu:0")` work, and `x.device` still says cpu. The wheel's own
start is run besides, as far as it goes without CANN.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch._subclasses.fake_tensor import FakeTensor

from npu_simulator import ge_session, install
from npucompose.targets.npu_offline import wheel

PATCHES = ("monkey", "api", "npu", "dynamo")
"""Groups of patches that `import torch_npu` applies."""
APPLIED = frozenset({"apply_npu_format_patch"})
"""The simulator has done this one."""
PACKAGES = (
    "torch_npu.optim", "torch_npu.utils.syncbatchnorm", "torch_npu.asd.checksum", "torch_npu._afd", "torch_npu.contrib",
    "torch_npu.testing.testcase",
)  # fmt: skip
"""What it imports besides."""
_LIBRARIES: list[torch.library.Library] = []


def start() -> dict[str, str]:
    """Make this process such a device, for its whole life. {step of the wheel's start that failed: the error}."""
    install(wheel.locate())
    ge_session.place_ge_graphs()
    _memory()
    _placement()
    if not hasattr(torch.nn.Module, "npu"):
        torch.nn.Module.npu = lambda self, device=None: self._apply(lambda tensor: tensor.npu(device))  # pyright: ignore
    return _rest_of_the_start()


def _memory() -> None:
    """Memory of `npu` is CPU memory."""
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)  # a library's kernels live as long as the object

    def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")


def _placement() -> None:
    """A tensor that a graph makes on `npu` is where its inputs are, on the CPU, but while TorchAir converts for GE."""
    from torchair.npu_fx_compiler import _NpuGraphConverter  # pyright: ignore[reportMissingImports]

    converting = 0
    new, run = FakeTensor.__new__, _NpuGraphConverter.run

    def made(cls: Any, fake_mode: Any, elem: Any, device: Any, *args: Any, **named: Any) -> Any:
        if not converting and isinstance(device, torch.device) and device.type == "npu":
            device = torch.device("cpu")
        return new(cls, fake_mode, elem, device, *args, **named)

    def converted(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal converting
        converting += 1
        try:
            return run(self, *args, **named)
        finally:
            converting -= 1

    FakeTensor.__new__ = staticmethod(made)  # pyright: ignore
    _NpuGraphConverter.run = converted


def _rest_of_the_start() -> dict[str, str]:
    failed: dict[str, str] = {}

    def step(name: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  whatever stops a step is what is reported of it
            failed[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"

    def patch(group: str) -> None:
        manager: Any = importlib.import_module("torch_npu._init.patches.patch_manager").PatchManager
        importlib.import_module(f"torch_npu._init.patches.{group}_patches")
        own = manager._patch_groups.get(group, ())
        for one in own:
            if one.__name__ not in APPLIED:
                step(f"{group}.{one.__name__}", one)
        manager._applied_patch_count[group] = len(own)

    for group in PATCHES:
        step(group, lambda group=group: patch(group))
    for package in PACKAGES:
        step(package, lambda package=package: importlib.import_module(package))
    return failed


def without_their_device(folder: Path) -> None:
    """TorchAir's system tests bring a device and a torch.npu of their own: they are left out, so that this one runs."""
    stub: Any = types.ModuleType("_privateuse1_backend")
    stub.npu_device = lambda: torch.device("npu:0")
    for name in ("register_hook", "register_generator", "set_npu_device", "set_device_index"):
        setattr(stub, name, lambda *_: None)
    sys.modules["_privateuse1_backend"] = stub
    home: Any = torch
    register, rename = home._register_device_module, home.utils.rename_privateuse1_backend
    home._register_device_module = lambda name, module: None if name == "npu" else register(name, module)
    home.utils.rename_privateuse1_backend = lambda name: None if name == "npu" else rename(name)
    sys.path.insert(0, str(folder))
    importlib.import_module("torchair_st_utils").__dict__["register_is_npu"] = lambda: None
    importlib.import_module("torchair_st_stub_aclgraph_utils").__dict__.update(
        patch_ops_npu_module=lambda _: torch.ops.npu,
        patch_torch_point_npu_module=lambda _: torch.npu,  # pyright: ignore
        patch_torch_npu_module=lambda _: sys.modules["torch_npu"],
    )
