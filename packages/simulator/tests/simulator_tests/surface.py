"""Run in a process of its own: what the simulated runtime puts under the names of torch_npu and TorchAir, as JSON.

`python surface.py TREE [invent]`; with `invent` one name is added that the wheel has not, and one signature is changed.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from npu_simulator import install

OURS = str(Path(sys.modules["npucompose"].__file__ or "").parent)
LITERALS = (bool, int, float, str, type(None))


def home_of(value: Any) -> str:
    """`ours` or `wheel`, by the file in which a function is written."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    return "ours" if code is not None and code.co_filename.startswith(OURS) else "wheel"


def signature(function: Any) -> list[tuple[str, str]]:
    """(name and kind, default) of each parameter but self and cls."""
    parameters = inspect.signature(function).parameters.values()
    return [
        (f"{p.name} {p.kind.name}", "" if p.default is p.empty else repr(p.default))
        for p in parameters
        if p.name not in ("self", "cls")
    ]


def described(value: Any) -> dict[str, Any]:
    if isinstance(value, LITERALS):
        return {"kind": "constant", "value": repr(value)}
    if isinstance(value, (FunctionType, staticmethod, classmethod)):
        function = inspect.unwrap(getattr(value, "__func__", value))
        return {"kind": "function", "home": home_of(function), "signature": signature(function)}
    if isinstance(value, type):
        return {"kind": "class", "module": value.__module__, "members": members(value)}
    return {"kind": "module" if isinstance(value, ModuleType) else "other"}


def members(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if not name.startswith("_"):
            found[name] = described(value) if not isinstance(value, type) else {"kind": "class"}
    return found


def main(tree: str, *how: str) -> None:
    install(Path(tree))
    import torch

    npu: Any = sys.modules["torch_npu.npu"]
    if "invent" in how:
        npu.fake_record_stream = lambda: None
        npu.set_stream_limit = lambda stream, cube, vector: None
    found: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if type(module) is ModuleType and (name.partition(".")[0] == "torch_npu" or name.startswith("torchair.")):
            found[name] = {key: described(value) for key, value in vars(module).items() if not key.startswith("__")}
    bases = {cls.__name__: members(cls) for cls in (npu.Stream.__base__, npu.Event.__base__, npu.NPUGraph.__base__)}
    inherited = sorted({*dir(torch.Stream), *dir(torch.Event)})
    print(json.dumps({"modules": found, "bases": bases, "inherited": inherited}))


if __name__ == "__main__":
    main(*sys.argv[1:])
