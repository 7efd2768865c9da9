"""Where this repository's code lies: the core at the top, and each package that plugs into it below packages/."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ("src", "airflow_free", "conf")
"""Folders of the core: its sources, the orchestrator, the choices."""


def packages(root: Path = ROOT) -> tuple[Path, ...]:
    """The folders of the distributions beside the core, by name."""
    return tuple(sorted(found.parent for found in (root / "packages").glob("*/pyproject.toml")))


def import_folders(root: Path = ROOT) -> dict[str, Path]:
    """{import name: its folder} of each package: `packages/extras/src/npucompose_extras`."""
    return {
        init.parent.name: init.parent for package in packages(root) for init in (package / "src").glob("*/__init__.py")
    }


def product(root: Path = ROOT) -> dict[str, Path]:
    """{import name: its folder} of all that is installed: the core, the orchestrator, each package."""
    core = {"airflow_free": root / "airflow_free", "npucompose": root / "src" / "npucompose"}
    return {**core, **import_folders(root)}


def choices(group: str = "*", root: Path = ROOT) -> dict[str, Path]:
    """{"model=add": its YAML} of the core and of every package, by name."""
    folders = (root / "conf", *(folder / "conf" for folder in import_folders(root).values()))
    found = {f"{file.parent.name}={file.stem}": file for one in folders for file in one.glob(f"{group}/*.yaml")}
    return dict(sorted(found.items()))


def folders_of_tests(root: Path = ROOT) -> tuple[Path, ...]:
    """The core's tests, then those of each package."""
    return (root / "tests", *(package / "tests" for package in packages(root) if (package / "tests").is_dir()))


def python_path(root: Path = ROOT) -> str:
    """A PYTHONPATH with which everything of the checkout is imported from there."""
    places = (root / "src", *(package / "src" for package in packages(root)), root)
    return os.pathsep.join(map(str, places))


def base_of(path: Path, root: Path = ROOT) -> Path:
    """The folder from which a file of the checkout is imported."""
    places = (root / "src", *(package / "src" for package in packages(root)))
    return next((place for place in places if path.is_relative_to(place)), root)
