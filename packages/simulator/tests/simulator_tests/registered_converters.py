"""Run in a process of its own: {operator with a GE converter in the imported wheel: whether it only raises}, as JSON.
It looks at TorchAir's registry and at the functions' bytecode, where the tables are parsed from source."""

from __future__ import annotations

import dis
import inspect
import json
import os
from collections.abc import Iterator
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

from npu_simulator import install
from npucompose.targets.npu_offline import wheel

SPACES = ("aten", "prims")


def registered() -> Iterator[tuple[str, bool]]:
    scripted = {f"{one.name}.{one.overload_name}".rstrip(".") for one in torch._C._jit_get_all_schemas()}
    for name in sorted({*torch._C._dispatch_get_all_op_names(), *scripted}):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space not in SPACES:
            continue
        operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default", None)
        converter: Any = getattr(operator, "_ge_converter", None)
        if converter is not None:
            code = inspect.unwrap(getattr(converter, "_func", converter)).__code__
            yield name, not any(one.opname.startswith("RETURN_") for one in dis.get_instructions(code))


if __name__ == "__main__":
    install(wheel.locate())
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports]
    import torchair  # noqa: F401  # pyright: ignore[reportMissingImports]
    from torchair._ge_concrete_graph import fx2ge_converter  # noqa: F401  # pyright: ignore[reportMissingImports]

    print(json.dumps(dict(registered())))
