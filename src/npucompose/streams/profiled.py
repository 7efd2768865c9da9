"""How long kernels take by a table of an NPU's profile, and which entries of it were used."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen
from torch import fx

from npucompose.results.streams import ProfileUse
from npucompose.schema.profile_table import ProfileEstimate, ProfileTable
from npucompose.streams.calibrated import MODEL_DOUBT
from npucompose.streams.cost import ResultSizes, roofline
from npucompose.streams.features import of_node
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel


@frozen
class Profiled:
    work: tuple[Work, ...]
    spread: float
    """By which share the kernels' times may be longer."""
    use: ProfileUse


def profiled(kernels: Sequence[fx.Node], table: ProfileTable, model: DeviceModel, sizes: ResultSizes) -> Profiled:
    """A profiled kernel keeps the cores that its shapes say, and takes the launch and the time of the table; one of
    whose family the table has nothing takes what the roofline says, and counts as sure as the others."""
    work: list[Work] = []
    entries: dict[str, int] = {}
    whole = doubt = 0.0
    found = 0
    for kernel, shaped in zip(kernels, roofline(kernels, model, sizes), strict=True):
        feature = of_node(kernel, sizes, table.flops_per_byte)
        guess = table.estimate(feature.family, feature.operator, feature.size)
        if guess is None:
            work.append(shaped)
            continue
        found += 1
        work.append(_timed(shaped, guess, model))
        entries.update(_entries(table, feature.family, guess))
        whole += guess.middle_us
        doubt += guess.high_us - guess.middle_us
    use = ProfileUse(
        files=table.files,
        soc=table.soc,
        cann=table.cann,
        digest=table.digest,
        kernels=found,
        by_shapes=len(kernels) - found,
        rows=sum(entries.values()),
        entries=entries,
    )
    return Profiled(tuple(work), max(doubt / whole if whole else 0.0, MODEL_DOUBT), use)


def _timed(shaped: Work, guess: ProfileEstimate, model: DeviceModel) -> Work:
    """A profile's duration is the kernel's alone; the launch lies between two of them. Arithmetic and memory are in the
    proportion of the roofline."""
    us = model.launch_us + guess.middle_us
    busy = shaped.us - shaped.fixed_us
    scale = guess.middle_us / busy if busy > 0 else 0.0
    divided = guess.middle_us if shaped.divided_us is None else shaped.divided_us * scale
    return evolve(
        shaped,
        us=us,
        in_a_row_us=None,
        fixed_us=model.launch_us,
        divided_us=divided,
        bandwidth=min(shaped.bandwidth * shaped.us * scale / us, 1.0),
    )


def _entries(table: ProfileTable, family: str, guess: ProfileEstimate) -> dict[str, int]:
    """{`mm at 4194304 bytes`: rows of the profile}."""
    known = table.families[family]
    rows = {(name, entry.size): entry.rows for name, entries in known.items() for entry in entries}
    return {f"{name} at {size:.0f} bytes": rows[name, size] for name, size in guess.samples}
