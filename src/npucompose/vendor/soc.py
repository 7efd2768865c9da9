"""The systems on chip as data: cores by kind, memory, streams, and what each cannot do. Loads no torch.

`socs.yaml` is the one table of them; planner, passes, simulated runtime, sinking and legality read it by `target.soc`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import yaml
from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose.vendor.device_model import ATLAS_A2, DeviceModel

FILE = Path(__file__).with_name("socs.yaml")

DEFAULT = "Ascend910B1"
"""What the simulated runtime is where `target.soc` names nothing: with the cores of TorchAir's documents, 24 and 48."""

WHERE = "target.soc"


@frozen(kw_only=True)
class Product:
    """A family of SoCs: `sinks` and `captures` are None where no document tells."""

    title: str
    names: tuple[str, ...]
    """Globs on the lower-case name."""
    sinks: bool | None = None
    """Whether it computes tiling on the device."""
    source: str
    captures: bool | None = None
    """Whether a sequence of kernels can be captured and replayed (aclmdlRICaptureBegin)."""


@frozen(kw_only=True)
class Row:
    """One SoC as the table has it."""

    family: str
    number: int
    cube: int
    vector: int
    memory: int | None = None
    l2: int
    mhz: int
    streams: int
    depth: int


@frozen(kw_only=True)
class SocTable:
    """socs.yaml, read."""

    families: Mapping[str, Product] = option(factory=dict)
    socs: Mapping[str, Row] = option(factory=dict)

    def family(self, name: str | None) -> str | None:
        """The family of a device's name: `family("Ascend910B3")` is "ascend910b"; ConfigError for an unknown name."""
        if name is None:
            return None
        lower = name.lower()
        for family, product in self.families.items():
            if lower == family or any(fnmatch.fnmatchcase(lower, pattern) for pattern in product.names):
                return family
        raise ConfigError(unknown("product", name, tuple(self.families), WHERE))


@frozen(kw_only=True)
class Soc(Row):
    """`soc_of("ascend910b4").vector` is 40."""

    name: str
    """As the device says it: `Ascend910B4`; of a family that was asked for, the family's name."""
    product: Product

    def model(self) -> DeviceModel:
        """What plans are simulated on: this SoC's cores and clock, and the nominal rates of an Atlas A2 otherwise."""
        both = self.vector == 0  # one kind of core computes everything
        return attrs.evolve(
            ATLAS_A2,
            name=f"{self.name}, nominal",
            cube=0 if both else self.cube,
            vector=self.cube if both else self.vector,
            cube_gflops=ATLAS_A2.cube_gflops * self.mhz / table().socs[DEFAULT].mhz,
        )


def table() -> SocTable:
    """The table that this version ships."""
    return _table()


@cache
def _table() -> SocTable:
    data: Any = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return structure(SocTable, data, "vendor/socs.yaml")


@cache
def soc_of(name: str | None) -> Soc | None:
    """The SoC that `target.soc` means; None where it names nothing; ConfigError where nothing has that name.

    A family (`ascend910b`, `a2`), or a SoC of it that the table has not, stands for the largest of the family, so that
    what exceeds it exceeds every one.
    """
    family = table().family(name)
    if family is None or name is None:
        return None
    rows = table().socs
    same = next((soc for soc in rows if _plain(soc) == _plain(name)), None)
    row = rows[same] if same else max(_of_family(family), key=lambda row: (row.cube, row.vector, row.streams))
    fields = {field.name: getattr(row, field.name) for field in attrs.fields(Row)}
    return Soc(**fields, name=same or name, product=table().families[family])


def device_of(name: str | None) -> Soc:
    """The SoC that the simulated runtime is: the one that is named, of a family its first, else the default."""
    family = table().family(name)
    rows = table().socs
    if family is None:
        name = DEFAULT
    elif not any(_plain(soc) == _plain(name or "") for soc in rows):
        name = next(soc for soc, row in rows.items() if row.family == family)
    found = soc_of(name)
    assert found is not None
    return found


def _of_family(family: str) -> tuple[Row, ...]:
    return tuple(row for row in table().socs.values() if row.family == family)


def _plain(name: str) -> str:
    """torch_npu writes Ascend910B4_1 where the runtime writes Ascend910B4-1."""
    return name.lower().replace("-", "_")
