"""Tests here share `report_examples` and `hostile`, which lie beside them, and one headless Chromium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.chromium import Chromium, found

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # for `report_examples`


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    if found() is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    with Chromium() as browser:
        yield browser
