"""An axis of a picture: values to places between 0 and 1; logarithmic where a decade or more lies between them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import frozen

DECADE = 10.0


@frozen(kw_only=True)
class Axis:
    low: float
    high: float
    logarithmic: bool

    @staticmethod
    def between(low: float, high: float) -> Axis:
        """`Axis.between(1, 100).place(10)` is 0.5, `Axis.between(0, 9).place(3)` is a third."""
        if low == high:
            low, high = low * 0.9, high * 1.1 or 1.0
        return Axis(low=low, high=high, logarithmic=low > 0 and high / low >= DECADE)

    def place(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """The inverse of `place`."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** place
        return self.low + (self.high - self.low) * place

    def marks(self, number: int) -> Iterator[float]:
        """Values at places that are equally far apart, both ends among them."""
        for n in range(number):
            yield self.value(n / (number - 1))
