"""Tests here share `report_examples` and `hostile`, which lie beside them, and one headless Chromium."""

from __future__ import annotations

import re
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


@pytest.fixture(autouse=True)
def picture(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--pictures FOLDER`, what the browser shows at the end of each test."""
    folder: Path | None = request.config.getoption("--pictures")
    if folder is None or "chromium" not in request.fixturenames:
        yield
        return
    browser: Chromium = request.getfixturevalue("chromium")
    yield
    folder.mkdir(parents=True, exist_ok=True)
    browser.photograph(folder / f"{re.sub(r'[^a-z0-9]+', '_', request.node.name)}.png")
