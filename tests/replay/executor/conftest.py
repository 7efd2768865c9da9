"""One thread and the extension by itself, for the tests of its classes."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from npucompose.replay.executor import build


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def extension() -> ModuleType:
    return build.load()
