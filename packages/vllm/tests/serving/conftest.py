"""What the engines' tests find by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.entry_points import of_this_checkout


@pytest.fixture(scope="package", autouse=True)
def entry_points_of_this_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with of_this_checkout(tmp_path_factory.mktemp("installed"), "npucompose.options"):
        yield
