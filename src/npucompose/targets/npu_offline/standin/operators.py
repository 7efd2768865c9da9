"""torch.ops.npu.*: schemas from the wheel's own list, shapes from the wheel's own meta functions, our CPU kernels."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.fx.node import has_side_effect

from npucompose.ops import attention, fused
from npucompose.targets.npu_offline.standin import composites, fusion_attention
from npucompose.targets.npu_offline.standin.modules import module

SCHEMAS = "csrc/aten/npu_native_functions_by_codegen.yaml"
SECTIONS = ("custom", "symint", "autograd", "quant")
FIA, IFA = attention.FIA, attention.IFA
SAVE = "save_npugraph_tensor(Tensor input, *, str? save_path=None, bool overwrite=False) -> ()"
_SAVED: Counter[str] = Counter()
_LIBRARIES: list[torch.library.Library] = []


def define(root: Path) -> int:
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
    for name in ("torch_npu.utils", "torch_npu.op_plugin", "torch_npu.op_plugin.meta"):
        module(name, __path__=[])
    module("torch_npu.utils.utils", _is_interactive_command_line=lambda: False)
    _run("torch_npu.utils._error_code", root / "utils" / "_error_code.py")
    for name in ("_meta_registrations", "_fake_registrations"):
        file = root / "op_plugin" / "meta" / f"{name}.py"
        if file.is_file():  # the second came with the operators whose sizes are symbols
            _run(f"torch_npu.op_plugin.meta.{name}", file)


def _run(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)


def _implement(library: torch.library.Library) -> None:
    """The reference kernels of npucompose.ops, and the two forms in which TorchAir calls FIA while it captures."""
    for name, kernel in {**attention.KERNELS, **fused.KERNELS}.items():
        library.impl(name, kernel, "CPU")
    fusion_attention.register(library)
    library.impl(f"{FIA}.out", _fia_out, "CPU")
    library.impl(f"_{FIA}_get_max_workspace", _fia_workspace, "CPU")
    library.define(SAVE)  # torch_npu defines it in Python, beside its graphs
    library.impl("save_npugraph_tensor", _save, "CPU")
    has_side_effect(torch.ops.npu.save_npugraph_tensor.default)


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


def _save(tensor: torch.Tensor, *, save_path: str | None = None, overwrite: bool = False) -> None:
    """`mm.pt` of the first replay is `mm_device_0_0.pt`, as torch_npu names it; of the second `mm_device_0_1.pt`."""
    path = Path(save_path or "tensor.pt")
    number = "" if overwrite else f"_{_SAVED[str(path)]}"
    _SAVED[str(path)] += 1
    torch.save(tensor.detach().clone(), path.with_name(f"{path.stem}_device_0{number}{path.suffix or '.pt'}"))
