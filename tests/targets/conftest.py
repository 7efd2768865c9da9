"""What the tests of TorchAir share."""

from __future__ import annotations

import pytest

from npucompose.npu.torchair import config
from tests.targets.torchair_fakes import Packages


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Packages:
    """The genuine packages, which only note what they are asked."""
    made = Packages()
    monkeypatch.setattr(config, "package", made)
    config.pool.cache_clear()
    return made
