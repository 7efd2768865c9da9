"""Changes that somebody wrote down: `known.yaml` keeps what a review once got through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tools.mutants.mutation import Mutation, written

KNOWN = Path(__file__).with_name("known.yaml")


def known(root: Path, path: Path = KNOWN) -> tuple[list[Mutation], list[str]]:
    """(the changes of the file, why others no longer fit the sources)."""
    found, complaints = [], []
    for entry in entries(path):
        try:
            found.append(_mutation(root, entry))
        except (ValueError, OSError) as error:
            complaints.append(str(error))
    return found, complaints


def entries(path: Path = KNOWN) -> list[dict[str, Any]]:
    """Each with `path`, `old`, `new` and `effect`."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) or []


def _mutation(root: Path, entry: dict[str, Any]) -> Mutation:
    source = (root / entry["path"]).read_text(encoding="utf-8")
    return written(entry["path"], source, entry["old"], entry["new"], at_import=entry.get("at_import", False))
