"""What `npucompose doctor` says of the times of kernels on this machine: their age, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from attrs import frozen

from npucompose import recorder
from npucompose.report.words import as_count
from npucompose.schema.cost_table import BUSY

CALIBRATE = "npucompose doctor --calibrate"


@frozen(kw_only=True)
class KernelTimes:
    """The table for one number of intra-op threads."""

    threads: int
    created: str
    spread: float
    """By which share the middle times are longer than the low ones: a few percent on an idle machine."""

    def words(self, now: datetime) -> str:
        """`2 threads: 3 days old, spread 4%`."""
        age = as_age(now - datetime.fromisoformat(self.created))
        busy = f" (the machine was busy: `{CALIBRATE}`)" if self.spread > BUSY else ""
        return f"{as_count(self.threads, 'thread')}: {age} old, spread {self.spread:.0%}{busy}"


def kernel_times() -> tuple[KernelTimes, ...]:
    """Those that are kept and hold here; measures nothing."""
    found = recorder.installed()
    tables = () if found is None else found.kernel_times()
    return tuple(KernelTimes(threads=one.threads, created=one.created, spread=one.spread) for one in tables)


def in_words(found: Sequence[KernelTimes]) -> str:
    now = datetime.now(timezone.utc)
    return "; ".join(one.words(now) for one in found) or f"none yet; `{CALIBRATE}` measures them"


def as_age(age: timedelta) -> str:
    """`3 days`, `5 hours`, `0 minutes`."""
    minutes = max(0, int(age.total_seconds() // 60))
    for unit, length in (("day", 60 * 24), ("hour", 60)):
        if minutes >= length:
            return as_count(minutes // length, unit)
    return as_count(minutes, "minute")
