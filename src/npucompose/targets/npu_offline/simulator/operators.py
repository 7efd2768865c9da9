"""torch.ops.npu.*: schemas from the wheel's own list, shapes from the wheel's own meta functions, our CPU kernels."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from npucompose.ops import attention, fused
from npucompose.targets.npu_offline.simulator import composites, fusion_attention
from npucompose.targets.npu_offline.simulator.modules import module

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.simulator.device import Device

SCHEMAS = "csrc/aten/npu_native_functions_by_codegen.yaml"
SECTIONS = ("custom", "symint", "autograd", "quant")
FIA, IFA = attention.FIA, attention.IFA
_LIBRARIES: list[torch.library.Library] = []


def define(device: Device, root: Path) -> int:
    """Define every operator of the list that torch does not have; says how many. `root` is the wheel's torch_npu."""
    library = torch.library.Library("npu", "FRAGMENT")
    _LIBRARIES.append(library)  # a library's operators live as long as the object
    defined = 0
    for schema in schemas((root / SCHEMAS).read_text()):
        library.define(schema)
        defined += 1
    _load_meta_functions(root)
    _implement(library)
    aten = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(aten)
    composites.register(aten)
    aten.impl("record_stream", lambda tensor, stream: device.use(tensor, stream.stream_id), "CPU")
    return defined


def schemas(text: str) -> Iterator[str]:
    """The schemas of the list in the order of its sections, each name once, as libtorch_npu registers them."""
    listed: Any = yaml.safe_load(text)
    seen: set[str] = set()
    for section in SECTIONS:
        for entry in listed.get(section) or ():
            schema = str(entry["func"] if isinstance(entry, dict) else entry)
            name = schema.partition("(")[0]
            if name not in seen and not hasattr(torch.ops.aten, name.partition(".")[0]):
                seen.add(name)
                yield registered(schema)


def registered(schema: str) -> str:
    """Several outputs of an `.out` operator are one list: `f.out(…, Tensor(a!) x, Tensor(b!) y)` -> `Tensor[] out`."""
    head, _, result = schema.rpartition("->")
    outputs = re.findall(r"Tensor\([a-z]!\) \w+", head)
    if ".out" in schema.partition("(")[0] and len(outputs) >= 2:
        head = head[: head.index(outputs[0])] + "Tensor[] out) "
        result = re.sub(r"\([a-z]!\)", "", result)
    return f"{head}->{result}"


def _load_meta_functions(root: Path) -> None:
    module("torch_npu.op_plugin", __path__=[str(root / "op_plugin")])  # its __init__ would load CANN's libraries
    for name in ("_meta_registrations", "_fake_registrations"):
        if (root / "op_plugin" / "meta" / f"{name}.py").is_file():  # the second came with sizes that are symbols
            importlib.import_module(f"torch_npu.op_plugin.meta.{name}")


def _implement(library: torch.library.Library) -> None:
    """The reference kernels of npucompose.ops, and the two forms in which TorchAir calls FIA while it captures."""
    for name, kernel in {**attention.KERNELS, **fused.KERNELS}.items():
        library.impl(name, kernel, "CPU")
    fusion_attention.register(library)
    library.impl(f"{FIA}.out", _fia_out, "CPU")
    library.impl(f"_{FIA}_get_max_workspace", _fia_workspace, "CPU")


def _fia_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
    **options: Any,
) -> Sequence[torch.Tensor]:
    for given, made in zip(out, attention.KERNELS[FIA](query, key, value, **options), strict=True):
        given.copy_(made)
    return out


def _fia_workspace(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Scratch memory; the reference kernel needs none, so that its size says nothing."""
    return torch.empty(16, dtype=query.dtype, device=query.device)
