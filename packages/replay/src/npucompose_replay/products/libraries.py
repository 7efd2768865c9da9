"""The libraries that compute a product on a CPU."""

from __future__ import annotations

MKL, ONEDNN, ATEN = "mkl", "onednn", "aten"
