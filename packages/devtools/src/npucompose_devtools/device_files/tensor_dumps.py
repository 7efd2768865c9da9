"""Folders of .npy files, one for each input and result of an operator: TorchAir's data dump of an FX graph, and GE's
dump after msaccucmp.

TorchAir: `mm_3-aten.mm.default.OUTPUT.0.20261125101500000001.npy` (node, operator, slot, time).
GE: `MatMulV3.MatMul_2.7.3.1764063300000001.output.0.npy` (type, name, task, stream, time, slot).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from npucompose.errors import ConfigError
from npucompose.results.artefacts import DumpedOperator, DumpedValue
from npucompose_devtools.device_files.kernels import torch_operator
from npucompose_devtools.device_files.tensors import load

if TYPE_CHECKING:
    import torch

FORM = "a folder of TorchAir's data dump (config.debug.data_dump), or of GE's dump as .npy"
MOST_FILES = 200_000
_TORCHAIR = re.compile(
    r"(?P<node>\w{1,200})-(?P<operator>[\w.]{1,200}?)\.(?P<kind>INPUT|OUTPUT)\.(?P<slot>\d{1,4}(?:\.\d{1,4})?)\.(?P<time>\d{14,26})\.npy"
)
_GE = re.compile(
    r"(?P<operator>\w{1,120})\.(?P<node>[\w-]{1,400})\.\d{1,10}\.\d{1,10}\.(?P<time>\d{10,26})\.(?P<kind>input|output)\.(?P<slot>\d{1,4})"
    r"(?:\.[\w.]{1,60})?\.npy"
)


@frozen(kw_only=True)
class Folder:
    """A dump whose files lie in one folder."""

    name: str
    operators: tuple[DumpedOperator, ...]
    path: Path

    def load(self, value: DumpedValue) -> torch.Tensor:
        assert value.file is not None
        return load(self.path / value.file)


@define
class _Call:
    operator: str
    time: str
    inputs: dict[str, str] = field(factory=dict[str, str])
    outputs: dict[str, str] = field(factory=dict[str, str])


def read(folder: Path) -> Folder | None:
    """None for a folder without such files; of a node that ran several times the first call."""
    calls: dict[str, _Call] = {}
    for name, found in _files(folder):
        ge = found.re is _GE
        operator = (torch_operator(found["operator"]) or found["operator"]) if ge else found["operator"]
        call = calls.setdefault(found["node"], _Call(operator, found["time"]))
        call.time = min(call.time, found["time"])
        slots = call.inputs if found["kind"].lower() == "input" else call.outputs
        slots[found["slot"]] = min(slots.get(found["slot"], name), name)
    if not calls:
        return None
    ordered = sorted(calls.items(), key=lambda one: (one[1].time, one[0]))
    operators = tuple(
        DumpedOperator(name=node, operator=call.operator, inputs=_values(call.inputs), outputs=_values(call.outputs))
        for node, call in ordered
    )
    return Folder(name=folder.name, operators=operators, path=folder)


def _files(folder: Path) -> Iterator[tuple[str, re.Match[str]]]:
    for number, path in enumerate(folder.iterdir()):
        if number >= MOST_FILES:
            raise ConfigError(f"{folder} has more than {MOST_FILES:,} files: give the folder of one step.")
        if found := _TORCHAIR.fullmatch(path.name) or _GE.fullmatch(path.name):
            yield path.name, found


def _values(slots: Mapping[str, str]) -> tuple[DumpedValue, ...]:
    ordered = sorted(slots.items(), key=lambda one: [int(part) for part in one[0].split(".")])
    return tuple(DumpedValue(slot=slot, file=file) for slot, file in ordered)
