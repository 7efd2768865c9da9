"""The version, in one place: the package, the wheel and every report read it here; and what it was tested with.

Anything else may work, and is told in one warning line.
"""

from __future__ import annotations

__version__ = "0.1.0"

VERIFIED_TORCH: tuple[str, ...] = ("2.11.0", "2.13.0", "2.14.0")
VERIFIED_TORCH_NPU: tuple[str, ...] = ("2.13.0", "2.14.0")
"""On which execution is proven: the whole of TorchAir's Python, on the simulated runtime."""


def torch_warning(version: str | None) -> str | None:
    """`torch 2.9.1 was not verified …`; None for a version that was, whatever build it is (`2.13.0+cpu`)."""
    if version is not None and version.partition("+")[0] in VERIFIED_TORCH:
        return None
    return f"torch {version or '?'} was not verified with this version of npucompose; {', '.join(VERIFIED_TORCH)} were."
