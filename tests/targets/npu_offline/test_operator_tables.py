"""The tables against the wheel itself: its registry of converters, its YAML, and the conversion of each operator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from attrs import evolve

from npucompose.targets.npu_offline import wheel
from npucompose.targets.npu_offline.operator_lists import live_lists
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import operators
from tests.targets.npu_offline.compared_operators import compared, found, wanted
from tests.targets.npu_offline.needs import offline

REGISTRY = (
    """
import json, os, re, inspect
os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
from npucompose.targets.npu_offline import wheel
from npucompose.targets.npu_offline.simulator import install
install(wheel.locate())
import torch, torch_npu, torchair
from torchair._ge_concrete_graph import fx2ge_converter
from torchair._ge_concrete_graph.ge_converter import custom
told = {}
for space in ("aten", "npu", "prims"):
    for name in {one.partition("::")[2].partition(".")[0] for one in torch._C._dispatch_get_all_op_names()
                 if one.startswith(space + "::")}:
        packet = getattr(getattr(torch.ops, space), name, None)
        for overload in packet.overloads() if packet is not None else ():
            converter = getattr(getattr(packet, overload), "_ge_converter", None)
            if converter is not None:
                source = inspect.getsource(inspect.unwrap(converter))
                body = source.partition('"""
    ")[2].partition("
    """')[2] or source.partition("):")[2] or source
                told[f"{space}::{name}" + ("" if overload == "default" else f".{overload}")] = (
                    body.strip().startswith("raise ") or "return" not in body and "raise " in body)
print(json.dumps(told))
"""
)


@offline
@pytest.mark.slow
def test_the_registry_of_the_imported_wheel_has_the_same_converters() -> None:
    out = subprocess.run([sys.executable, "-c", REGISTRY], capture_output=True, text=True, check=True).stdout
    told: dict[str, bool] = json.loads(out.splitlines()[-1])
    mine = live_lists(wheel.locate()).converters
    shared = {name for name in mine if name.startswith(("aten::", "prims::"))}
    assert {name for name in told if name.startswith(("aten::", "prims::"))} == shared
    assert {name for name in shared if told[name]} == {name for name in shared if mine[name]}


@offline
def test_the_yaml_of_the_wheel_read_by_another_parser_lists_the_same_kernels() -> None:
    folder = wheel.locate() / "torch_npu" / "csrc" / "aten"
    names: set[str] = set()
    for file in ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml"):
        tree = yaml.safe_load((folder / file).read_text())
        entries = [one for key in ("custom", "supported", "symint", "quant", "autograd") for one in tree.get(key) or ()]
        names |= {(one["func"] if isinstance(one, dict) else one).split("(")[0].strip() for one in entries}
    listed = {name.partition("::")[2] for name, by in live_lists(wheel.locate()).kernels.items() if by != "python"}
    assert listed == names


@offline
@pytest.mark.slow
def test_derived_captured_and_genuine_agree_for_every_operator_without_a_converter_or_a_kernel(tmp_path: Path) -> None:
    table = operators(REFERENCE)
    names = wanted(table)
    told = found(tmp_path, names)
    rows = list(compared(told, names, table))
    assert [row for row in rows if not row.agrees] == []
    assert sum(not row.why_not for row in rows) > 0.8 * len(rows)

    lacking = evolve(table, lists=evolve(table.lists, kernels={**table.lists.kernels, "aten::nonzero_static": ""}))
    assert [row.name for row in compared(told, names, lacking) if not row.agrees] == ["aten::nonzero_static"]
