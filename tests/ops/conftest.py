"""The operators' own shapes: no wheel that an earlier test of the process has found takes part, unless a test asks."""

from __future__ import annotations

import pytest

from npucompose.ops import npu


@pytest.fixture(autouse=True)
def _without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`npu.SOURCES` as in a process that has composed nothing; each test may say where the wheel is."""
    fresh = npu.Sources()
    for name in ("locate", "functions", "soc", "formed"):
        monkeypatch.setattr(npu.SOURCES, name, getattr(fresh, name))
