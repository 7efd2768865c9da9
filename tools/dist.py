"""`python -m tools.dist [FOLDER]`: sdists of the core and of each package, and wheels made of them alone, into dist/.

The native replayer is compiled for the torch of this environment. Nothing is downloaded: hatchling is the one of here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.layout import ROOT, packages

CARRYING = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}
"""Hatchling's own variable for the `wheel_hook.py` of a package."""


def make(folder: Path, project: Path = ROOT) -> tuple[Path, Path]:
    """The sdist of the core, or of the package in a folder, and the wheel made of it, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="npucompose-dist-") as place:
        made, unpacked = Path(place) / "made", Path(place) / "unpacked"
        sdist = _built("sdist", project, made)
        with tarfile.open(sdist) as packed:
            packed.extractall(unpacked, filter="data")
        (source,) = unpacked.iterdir()
        wheel = _built("wheel", source, made)
        return Path(shutil.move(sdist, folder / sdist.name)), Path(shutil.move(wheel, folder / wheel.name))


def _built(target: str, source: Path, folder: Path) -> Path:
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, env=os.environ | CARRYING, check=True)
    (made,) = set(folder.iterdir()) - before
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    for made in (file for project in (ROOT, *packages()) for file in make(folder, project)):
        print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
