"""docs/keys.md is the option table, as `npucompose list keys` shows it."""

from __future__ import annotations

import pytest

from npucompose.report.keys import page
from tests.docs.blocks import ROOT


def test_the_page_of_keys_is_what_the_table_says(request: pytest.FixtureRequest) -> None:
    file = ROOT / "docs" / "keys.md"
    if request.config.getoption("--update-golden"):
        file.write_text(page(), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == page()
