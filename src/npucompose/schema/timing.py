"""Samples of one candidate, and who can be one. Knows no clock."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Candidate = Literal["replay", "compiled", "eager"]
"""The detached handle of a recording, the call through torch.compile, the model itself."""


@frozen(kw_only=True)
class Timing:
    """Samples of one candidate and what is read from them; made by `npucompose.measure.timing.Samples`."""

    samples_us: tuple[float, ...]
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float
