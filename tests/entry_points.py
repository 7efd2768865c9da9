"""The entry points of this checkout: those of an environment are as old as its last installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.layout import packages

ROOT = Path(__file__).resolve().parents[1]


def declared(group: str) -> Iterator[str]:
    """`name = module:attribute` of each entry point that the core and the packages declare in a group."""
    for project in (ROOT, *packages(ROOT)):
        lines = (project / "pyproject.toml").read_text(encoding="utf-8").splitlines()
        if (head := f'[project.entry-points."{group}"]') in lines:
            begin = lines.index(head) + 1
            yield from (line.replace('"', "") for line in lines[begin : lines.index("", begin)])


@contextmanager
def of_this_checkout(folder: Path, *groups: str) -> Iterator[None]:
    """`with of_this_checkout(folder, "npucompose.options"):` those of every pyproject.toml are found beside the
    installed."""
    text = [line for group in groups for line in (f"[{group}]", *declared(group), "")]
    about = folder / "npucompose_checkout-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: npucompose-checkout\nVersion: 0\n")
    (about / "entry_points.txt").write_text("\n".join(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield
