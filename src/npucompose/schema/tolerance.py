"""How far a result may be from the reference: |got - reference| <= atol + rtol * |reference| for every element.

    dtype              rtol     atol
    float64            1e-9     1e-9
    float32            1e-4     1e-5
    float16            1e-2     1e-3
    bfloat16           3e-2     1e-2
    float8_*           2e-1     1e-1
    complex: as their parts; integers, bool: exact

They leave room for another order of summation over some thousand terms, which is what a fusing compiler changes; they
are wider than torch.testing's, which are made for single operators.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Tolerance:
    rtol: float
    atol: float

    def as_dict(self) -> dict[str, float]:
        return {"rtol": self.rtol, "atol": self.atol}

    def widened(self, other: Tolerance) -> Tolerance:
        """Whichever allows more; what must be exact (integers) stays so."""
        if self == EXACT:
            return self
        return Tolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


EXACT = Tolerance(0.0, 0.0)
TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-9, 1e-9),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(3e-2, 1e-2),
    "float8": Tolerance(2e-1, 1e-1),
    "complex128": Tolerance(1e-9, 1e-9),
    "complex64": Tolerance(1e-4, 1e-5),
    "complex32": Tolerance(1e-2, 1e-3),
}


def tolerance_of(dtype: str) -> Tolerance:
    """The row of the table for `float32` or `torch.float32`; EXACT for integers and bool."""
    name = dtype.removeprefix("torch.")
    return TOLERANCES.get("float8" if name.startswith("float8") else name, EXACT)
