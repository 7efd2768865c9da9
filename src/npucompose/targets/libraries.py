"""The libraries that compute a product on a CPU."""

from __future__ import annotations

from typing import Literal

LinearLibrary = Literal["auto", "mkl", "onednn", "aten"]
"""One of them, or the fastest per shape."""
MKL, ONEDNN, ATEN = "mkl", "onednn", "aten"
