"""The entry points of this checkout: those of an environment are as old as its last installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def entry_points_of_this_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    begin = lines.index('[project.entry-points."npucompose.options"]') + 1
    points = [line.replace('"', "") for line in lines[begin : lines.index("", begin)]]
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "npucompose_checkout-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: npucompose-checkout\nVersion: 0\n")
    (about / "entry_points.txt").write_text("\n".join(["[npucompose.options]", *points, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield
