"""Which of several kernels computes a part of a graph, and what was measured of each. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from attrs import field, frozen

from npucompose.results.effective import Effective

By = Literal["measured", "remembered", "pinned", "default"]
SHOWN = 4
"""Parts of a graph that a message names."""


@frozen(kw_only=True)
class Winner:
    """One part of a graph and who computes it. Times are medians in microseconds of calls made in turns."""

    key: str
    """`linear_8x512x256`, `graph_3f2a…`: equal wherever the same is computed, so that it can be pinned."""
    winner: str
    by: By
    """Measured now; remembered on this machine; pinned by `target.kernels`; or nobody measured, see `why`."""
    why: str = ""
    """Why nothing was measured, or why a faster one did not win."""
    times_us: Mapping[str, float] = field(factory=dict[str, float])
    gain: tuple[float, float] | None = None
    """The quartiles, over the rounds, of the nearest rival's time divided by the winner's."""
    rounds: int = 0
    max_abs_err: float | None = None
    """Between the results of the two; None where they were not compared, and for products."""
    here: str | None = None
    """What this machine remembers as faster, where something else is pinned."""

    @property
    def rival(self) -> str | None:
        """The fastest of the others; None where no time of the winner is known to compare it with."""
        if not self.times_us.get(self.winner):
            return None
        others = {name: us for name, us in self.times_us.items() if name != self.winner}
        return min(others, key=others.__getitem__, default=None)

    @property
    def words(self) -> str:
        """`linear_8x512x256: onednn, 2.31x as fast as mkl (quartiles 2.20x to 2.40x of 40 rounds), remembered`."""
        parts = [f"{self.key}: {self.winner}"]
        if self.rival is not None:
            words = f"{self.times_us[self.rival] / self.times_us[self.winner]:.2f}x as fast as {self.rival}"
            low, high = self.gain or (0, 0)
            parts.append(words + (f" (quartiles {low:.2f}x to {high:.2f}x of {self.rounds})" if self.gain else ""))
        if self.max_abs_err is not None:
            parts.append(f"results differ by {self.max_abs_err:.2g}")
        parts.append(self.by if self.by != "default" else "not measured")
        if self.here is not None:
            parts.append(f"this machine would choose {self.here}")
        return ", ".join(parts) + (f": {self.why}" if self.why else "")


def pins_of_nothing(pinned: Mapping[str, str], found: Iterable[Winner]) -> tuple[Effective, ...]:
    """What `target.kernels` names and no graph of the run has."""
    parts = {winner.key: winner for winner in found}
    why = f"no graph of this run has such a part; {_listed(parts)}"
    return tuple(
        Effective(option=f"target.kernels.{key}", requested=value, effective=None, why=why)
        for key, value in pinned.items()
        if key not in parts
    )


def _listed(parts: Iterable[str]) -> str:
    names = list(parts)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"it has {', '.join(names[:SHOWN])}{more}" if names else "it has none that can be chosen"
