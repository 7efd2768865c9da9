"""Samples of one candidate. Knows no clock."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Timing:
    """Samples of one candidate and what is read from them; made by `npucompose.measure.timing.Samples`."""

    samples_us: tuple[float, ...]
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float
