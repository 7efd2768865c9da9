"""Sizes in bytes as a person writes and reads them."""

from __future__ import annotations

import re

from attrs import frozen

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BOUND = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?) ?({'|'.join(_UNITS)}|x)", re.ASCII)


def as_bytes(number: int) -> str:
    """`as_bytes(9421)` is `9.2 KiB`."""
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


@frozen(kw_only=True)
class MemoryBound:
    """At most so much memory: `512MiB`, or `1.2x` of what one stream takes."""

    text: str
    amount: float
    unit: str

    @classmethod
    def from_text(cls, text: str) -> MemoryBound:
        """ValueError for anything but a number above 0 with a unit (B, KiB, MiB, GiB, TiB) or x."""
        found = _BOUND.fullmatch(text)
        if found is None or not float(found[1]):
            raise ValueError(f"must be a size such as 512MiB or a multiple of one stream's such as 1.2x: {text!r}")
        return cls(text=text, amount=float(found[1]), unit=found[2])

    def nbytes(self, one_stream: int) -> int:
        """In bytes, where one stream takes `one_stream`."""
        return int(self.amount * (one_stream if self.unit == "x" else 1024 ** _UNITS.index(self.unit)))


def as_number(text: str) -> int | None:
    """`as_number("9.2KiB")` is 9420; None for what is no size in bytes."""
    found = _BOUND.fullmatch(text)
    return None if found is None or found[2] == "x" else int(float(found[1]) * 1024 ** _UNITS.index(found[2]))
