"""Which options vllm-ascend's keys set, by its version: the rows of `vllm_ascend.yaml`. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import yaml_loader
from npucompose.recipe.dialects import Settings
from npucompose.recipe.vendor_options import Package
from npucompose.table.structure import structure
from npucompose.vendor.option_specs import shown
from npucompose.vendor.versions import order_of

PROJECT = "vllm-ascend"
FLAG = "--vllm-ascend"


@frozen(kw_only=True)
class Row:
    """What some versions make of their keys; the fields are explained in the data file."""

    since: str
    read_at: str
    switch: str
    on: bool = False
    package: Package
    mode: str = ""
    options: Mapping[str, Any]
    keys: Mapping[str, str] = field(factory=dict[str, str])
    mode_key: str = ""
    cached_key: str = ""
    static_key: str = ""
    static: Mapping[str, Any] = field(factory=dict[str, Any])
    sizes: str = ""
    hcom: bool = False
    off: str = "captured"
    graphs: Mapping[str, str] = field(factory=dict[str, str])
    xlite: Mapping[str, str] = field(factory=dict[str, str])
    lines: Mapping[str, str] = field(factory=dict[str, str])
    source: str

    @property
    def asks(self) -> tuple[str, ...]:
        """Keys that say something to this row."""
        single = (self.switch, self.mode_key, self.cached_key, self.static_key)
        return tuple(key for key in (*single, *self.keys.values()) if key)

    @property
    def section(self) -> str:
        """First word of the switch: `torchair_graph_config`, by which a file of the row is known."""
        return self.switch.partition(".")[0]


@cache
def rows() -> tuple[Row, ...]:
    """From the oldest version to the newest."""
    return tuple(structure(Row, row, f"rows[{at}]") for at, row in enumerate(_table()["rows"]))


def newest() -> str:
    """What was read of the newest row, in words."""
    return str(_table()["newest"])


@cache
def _table() -> Mapping[str, Any]:
    return yaml.load(Path(__file__).with_name("vllm_ascend.yaml").read_text(encoding="utf-8"), yaml_loader())


def row_of(settings: Settings) -> Row:
    """The row of the version that is said, else the newest that knows the file's keys; a note says which."""
    if settings.version is None:
        best = max(rows(), key=lambda row: (_known(row, settings), order_of(row.read_at)))
        known = " that has these keys" if best is not rows()[-1] else ""
        settings.notes.append(
            f"{PROJECT}: no version is said: {best.read_at} is assumed, the newest{known}; {FLAG} VERSION says another"
        )
        settings.version = best.read_at
        return best
    settings.version = version = settings.version.removeprefix("v")
    first = rows()[0].since
    if version != "main" and not order_of(version)[0]:
        raise ConfigError(f"{FLAG} {settings.version}: a version like 0.18.0 or 0.13.0rc1 is wanted, or main.")
    if version != "main" and order_of(version) < order_of(first):
        raise ConfigError(f"{FLAG} {version}: the first version that compiles, and that is known here, is {first}.")
    row = rows()[-1]
    if version != "main":
        row = [row for row in rows() if order_of(row.since) <= order_of(version)][-1]
        if order_of(version) > order_of(rows()[-1].read_at):
            settings.notes.append(f"{PROJECT} {version} was not read: what {newest()} does is assumed")
    settings.notes.append(f"{PROJECT} {version}, by {settings.version_from}: keys mean what {row.source} makes of them")
    return row


def _known(row: Row, settings: Settings) -> int:
    sections = {row.section, *(("xlite_graph_config",) if row.xlite else ())}
    return sum(settings.there(section) for section in sections)


def foreign(row: Row, settings: Settings) -> None:
    """A line for each key that only other versions know."""
    for key in dict.fromkeys(key for other in rows() for key in other.asks if key not in row.asks):
        value = settings.take(key)
        if value is not None:
            have = [other for other in rows() if key in other.asks]
            which = f"{have[0].since} to {have[-1].read_at}" if have[0].since != have[-1].read_at else have[0].since
            settings.line(f"{key}={shown(value)}", f"{PROJECT} {settings.version} has no such key; {which} has it")
