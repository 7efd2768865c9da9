"""The entry points of this checkout: those of an environment are as old as its last installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def of_this_checkout(folder: Path, *groups: str) -> Iterator[None]:
    """`with of_this_checkout(folder, "npucompose.options"):` those of pyproject.toml are found beside the installed."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    text: list[str] = []
    for group in groups:
        begin = lines.index(f'[project.entry-points."{group}"]') + 1
        points = [line.replace('"', "") for line in lines[begin : lines.index("", begin)]]
        text += [f"[{group}]", *points, ""]
    about = folder / "npucompose_checkout-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: npucompose-checkout\nVersion: 0\n")
    (about / "entry_points.txt").write_text("\n".join(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield
