"""What git says of a repository, for the scripts beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(repository: Path, *words: str, check: bool = True) -> str:
    """What git prints; without `check` also where it finds nothing."""
    return subprocess.run(["git", "-C", str(repository), *words], check=check, capture_output=True, text=True).stdout
