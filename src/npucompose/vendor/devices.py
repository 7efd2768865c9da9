"""Devices as data: nominal figures that plans are predicted with, and the systems on chip. Loads no torch.

`socs.yaml` is the one table of them; planner, passes, simulated runtime, sinking and legality read it by `target.soc`.
A prediction compares plans of one graph on one device; it is no measurement. Every figure can be replaced by one that
was measured (`streams.device.event_us=0.4`).
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
from npucompose.input_safety import yaml_loader
from npucompose.table.options import option
from npucompose.table.structure import structure


@frozen(kw_only=True)
class DeviceModel:
    """Nominal figures of one device."""

    name: str
    cube: int
    """Cores for matrix products; 0 where one kind of core computes everything."""
    vector: int
    launch_us: float
    """From the end of one kernel to the start of the next on the same stream."""
    event_us: float
    """From the end of the recording kernel to the start of the waiting one, beyond launch_us."""
    stream_us: float
    """Until the first kernel of a side stream can start."""
    cube_gflops: float
    """Of one core, in matrix products."""
    vector_gflops: float
    """Of one core, in everything else."""
    gbytes_s: float
    """Memory bandwidth of the whole device."""
    l2_bytes: float = 0.0
    """Of the cache that all cores share: what was read or written so many bytes ago is read from there."""
    l2_gbytes_s: float = 0.0
    word_bytes: int | None = None
    """Width of the elements that the two rates of cores are of; None: of any."""
    fork_us: float | None = None
    """What it costs to spread one kernel over the threads that torch gives it when no streams are in use; None where a
    kernel takes all the cores that it can by itself."""
    link_us: float = 20.0
    """What a collective takes however few bytes it has."""
    link_gbytes_s: float = 100.0
    """Between one rank and all others together, in one direction. The default is the order of what DeepEP reports
    within a host of Ascend NPUs (sgl-kernel-npu, README: 102 and 152 GB/s)."""
    collective_cores: int = 0
    """Vector cores that a collective takes while it runs, all at once; 0: the link works by itself."""

    def measured(self, name: str, stream_us: float, event_us: float) -> DeviceModel:
        """With measured times of streams and events; the launch is in the measured times of kernels."""
        return attrs.evolve(self, name=name, launch_us=0.0, event_us=event_us, stream_us=stream_us)

    def lacks(self, aicore: int, vectorcore: int) -> str | None:
        """`Atlas A2, nominal has 24 cube and 48 vector cores` where that many are not there."""
        if aicore <= (self.cube or self.vector) and vectorcore <= self.vector:
            return None
        cores = f"{self.cube} cube and {self.vector} vector cores" if self.cube else f"{self.vector} cores of one kind"
        return f"{self.name} has {cores}"


ATLAS_A2 = DeviceModel(
    name="Atlas A2, nominal",
    cube=24,
    vector=48,
    launch_us=2.0,
    event_us=2.0,
    stream_us=2.0,
    cube_gflops=13_000.0,
    vector_gflops=200.0,
    gbytes_s=1600.0,
    l2_bytes=192 * 2**20,
    l2_gbytes_s=7000.0,
    word_bytes=2,
    collective_cores=48,
)
"""Cores as TorchAir's document on core limits has them (24 cube, 48 vector). Memory and L2 as "L2 Cache Tiling" says
(Ascend C best practices, CANN 8.0: 192 MB, some 7 TB/s, 1.6 TB/s beyond). A cube core does 16 x 16 x 16 products a
clock and a vector core 128 elements of 16 bits (platform_config: cube_m_size, vec_calc_size), which is 15,155 and 237
GFLOPS at 1.85 GHz; the rates are some 85 % of them. Latencies are round assumptions of the right order and no
measurement: calibrate them before a prediction is believed."""


STREAMS = 64
"""So many a process can have on every device; the table says it of a SoC."""


def cpu(cores: int) -> DeviceModel:
    """A machine whose streams are worker threads, a kernel on one core each.

    Round figures of the right order for the native replayer, and no measurement of this machine
    (`streams.cost=measured` and `streams.device.*` replace them). A thread that is awake starts its stream in 0.2 µs
    and one that has gone to sleep in some 50; 2 keeps graphs of a few microseconds, which would lose on the latter, on
    one stream.
    """
    return DeviceModel(
        name=f"CPU with {cores} cores, nominal",
        cube=0,
        vector=cores,
        launch_us=0.1,
        event_us=0.1,
        stream_us=2.0,
        cube_gflops=60.0,
        vector_gflops=4.0,
        gbytes_s=20.0,
        fork_us=5.0,
        link_us=150.0,
        link_gbytes_s=2.0,
    )


@frozen(kw_only=True)
class Calibration:
    """Measured figures that replace nominal ones; null keeps the target's own."""

    cube: int | None = option(None, "cube cores; 0: one kind of core computes everything", ge=0, optional=True)
    vector: int | None = option(None, "vector cores", ge=1, optional=True)
    launch_us: float | None = option(None, "time between two kernels of one stream", ge=0, optional=True)
    event_us: float | None = option(
        None, "time from an event's record to the kernel that waits for it", ge=0, optional=True
    )
    stream_us: float | None = option(None, "time until a side stream's first kernel can start", ge=0, optional=True)
    cube_gflops: float | None = option(None, "rate of one core in matrix products", gt=0, optional=True)
    vector_gflops: float | None = option(None, "rate of one core in everything else", gt=0, optional=True)
    gbytes_s: float | None = option(None, "memory bandwidth of the device", gt=0, optional=True)
    l2_bytes: float | None = option(None, "size of the cache that all cores share; 0: none", ge=0, optional=True)
    l2_gbytes_s: float | None = option(None, "bandwidth of that cache", ge=0, optional=True)
    link_us: float | None = option(None, "latency of a collective, whatever its size", ge=0, optional=True)
    link_gbytes_s: float | None = option(
        None, "bandwidth between one rank and all others together, in one direction", gt=0, optional=True
    )
    collective_cores: int | None = option(
        None, "vector cores that a collective occupies while it runs, all at once; 0: none", ge=0, optional=True
    )

    def onto(self, model: DeviceModel) -> DeviceModel:
        """`model` with the figures that are given."""
        given = {name: value for name, value in attrs.asdict(self).items() if value is not None}
        return attrs.evolve(model, **given, name=f"{model.name}, calibrated") if given else model


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
    capture_streams: int | None = None
    """That all captures of a process could have, with the drivers of `capture_source`; None: no public figure."""
    capture_sizes: int | None = None
    """At most so many sizes, as above."""
    capture_source: str = ""


@frozen(kw_only=True)
class SocRow:
    """One SoC as the table has it."""

    family: str
    number: int
    cube: int
    vector: int
    memory: int | None = None
    gbytes_s: float | None = None
    l2: int
    mhz: int
    streams: int
    depth: int


@frozen(kw_only=True)
class SocTable:
    """socs.yaml, read."""

    families: Mapping[str, Product] = option(factory=dict)
    socs: Mapping[str, SocRow] = option(factory=dict)

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
class Soc(SocRow):
    """`soc_of("ascend910b4").vector` is 40."""

    name: str
    """As the device says it: `Ascend910B4`; of a family that was asked for, the family's name."""
    product: Product

    def model(self) -> DeviceModel:
        """What plans are simulated on: this SoC's cores, clock, L2 and memory, else the rates of an Atlas A2.

        A core moves as many bytes to and from L2 a clock as one of an Atlas A2.
        """
        both = self.vector == 0  # one kind of core computes everything
        usual = table().socs[DEFAULT]
        clock = self.mhz / usual.mhz
        return attrs.evolve(
            ATLAS_A2,
            name=f"{self.name}, nominal",
            cube=0 if both else self.cube,
            vector=self.cube if both else self.vector,
            cube_gflops=ATLAS_A2.cube_gflops * clock,
            gbytes_s=self.gbytes_s or ATLAS_A2.gbytes_s,
            l2_bytes=float(self.l2),
            l2_gbytes_s=ATLAS_A2.l2_gbytes_s * clock * self.cube / usual.cube,
        )


@cache
def table() -> SocTable:
    """The table that this version ships."""
    data: Any = yaml.load(FILE.read_text(encoding="utf-8"), Loader=yaml_loader())
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
    of_family = [row for row in rows.values() if row.family == family]
    row = rows[same] if same else max(of_family, key=lambda row: (row.cube, row.vector, row.streams))
    fields = {field.name: getattr(row, field.name) for field in attrs.fields(SocRow)}
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


def _plain(name: str) -> str:
    """torch_npu writes Ascend910B4_1 where the runtime writes Ascend910B4-1."""
    return name.lower().replace("-", "_")
