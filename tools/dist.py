"""`python -m tools.dist [FOLDER]`: the sdist, and from the sdist alone the wheel with the native replayer, into dist/.

Nothing is downloaded: hatchling is the one of this environment, and torch too, for which the replayer is compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARRYING = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}
"""Hatchling's own variable for tools/wheel_hook.py."""


def make(folder: Path) -> tuple[Path, Path]:
    """The sdist of this checkout and the wheel made of it, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="npucompose-dist-") as place:
        made, unpacked = Path(place) / "made", Path(place) / "unpacked"
        sdist = _built("sdist", ROOT, made)
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
    for made in make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"):
        print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
