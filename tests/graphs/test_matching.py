"""An operator by its name, as a rule, a plan or a recipe writes it."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from npucompose.graphs import matching


def test_an_operator_of_an_installed_package_is_there_when_somebody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packages define theirs late: by the names that a configuration holds."""
    with torch.library._scoped_library("npucompose_asked", "FRAGMENT") as library:

        def define(names: Collection[str]) -> None:
            assert list(names) == ["npucompose_asked.late.default"]
            library.define("late(Tensor x) -> Tensor")

        monkeypatch.setattr(matching, "define_installed", define)
        found = matching.operator_of.__wrapped__("npucompose_asked.late.default")
        assert str(found) == "npucompose_asked.late.default"
