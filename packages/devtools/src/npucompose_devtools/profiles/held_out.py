"""How well a profile predicts itself: rows are held out, predicted from the others and compared with their times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen

from npucompose_devtools.profiles.table import Sized, made_of, quantile

FOLDS = 5


@frozen
class Predicted:
    family: str
    us: float
    """Measured."""
    guess_us: float
    covered: bool

    @property
    def error(self) -> float:
        """Share by which the prediction is off."""
        return abs(self.guess_us / self.us - 1)


@frozen(kw_only=True)
class HeldOut:
    """What came of one way to hold rows out."""

    what: str
    """`kernels that ran before` or `sizes that never ran`."""
    rows: int
    """Held out, each once."""
    predicted: tuple[Predicted, ...]
    """Of those for which something could be said."""

    @property
    def median_error(self) -> float | None:
        errors = sorted(one.error for one in self.predicted)
        return quantile(errors, 0.5) if errors else None

    @property
    def p90_error(self) -> float | None:
        errors = sorted(one.error for one in self.predicted)
        return quantile(errors, 0.9) if errors else None

    @property
    def coverage(self) -> float | None:
        """Share of the predicted rows whose time lies in the interval."""
        return sum(one.covered for one in self.predicted) / len(self.predicted) if self.predicted else None

    @property
    def total_error(self) -> float | None:
        """Share by which the sum of all predictions is off."""
        measured = sum(one.us for one in self.predicted)
        return abs(sum(one.guess_us for one in self.predicted) / measured - 1) if measured else None

    def of_family(self, family: str) -> HeldOut:
        return HeldOut(what=self.what, rows=self.rows, predicted=tuple(p for p in self.predicted if p.family == family))

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted({one.family for one in self.predicted}))

    def as_dict(self) -> dict[str, Any]:
        return {
            "held_out": self.what,
            "rows": self.rows,
            "predicted": len(self.predicted),
            "median_error": self.median_error,
            "p90_error": self.p90_error,
            "coverage": self.coverage,
            "total_error": self.total_error,
        }


def held_out(rows: Sequence[Sized], ratio: float) -> tuple[HeldOut, HeldOut]:
    """Two questions to one profile, each row held out once in one of five parts: single rows, whose kernels ran at that
    size in the other parts too; and all rows of a kernel and size together, which the other parts have never seen."""
    return (
        _by("single rows", rows, ratio, lambda at, one: f"row {one.row.line}"),
        _by("whole sizes", rows, ratio, lambda at, one: repr((one.row.type, one.row.inputs, one.row.outputs))),
    )


def _by(what: str, rows: Sequence[Sized], ratio: float, key: Callable[[int, Sized], str]) -> HeldOut:
    part = [_part(key(at, one)) for at, one in enumerate(rows)]
    predicted: list[Predicted] = []
    for fold in range(FOLDS):
        known = [one for one, of in zip(rows, part, strict=True) if of != fold]
        asked = [one for one, of in zip(rows, part, strict=True) if of == fold]
        if known and asked:
            predicted += _predictions(known, asked, ratio)
    return HeldOut(what=what, rows=len(rows), predicted=tuple(predicted))


def _part(key: str) -> int:
    """The same for the same key on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % FOLDS


def _predictions(known: Sequence[Sized], asked: Sequence[Sized], ratio: float) -> Iterator[Predicted]:
    table = made_of(known, soc="", cann="", files=("held out",), ratio=ratio)
    for one in asked:
        guess = table.estimate(*one.kernel)
        if guess is not None:
            us = one.row.us
            yield Predicted(one.feature.family, us, guess.middle_us, guess.low_us <= us <= guess.high_us)
