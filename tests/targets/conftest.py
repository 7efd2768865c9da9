"""What the tests of TorchAir share."""

from __future__ import annotations

import pytest

from npucompose.targets.torchair import config, features
from tests.targets.torchair_fakes import Packages


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Packages:
    """The genuine packages, which only note what they are asked."""
    made = Packages()
    for module in (config, features):
        monkeypatch.setattr(module, "package", made)
    monkeypatch.setattr(config, "_POOLS", {})
    return made
