"""Copies of the working tree, in which a file can be changed and is put back, bytes and times."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.mutants.mutation import Mutation

LIFTED = 1_000_000_000
"""Seconds since 1970, and one more for each mutant: a time that no source has, so that no compiled file fits it."""


def copied(root: Path, place: Path) -> Path:
    """What git tracks or would track in `root`, at `place`, as it stands now; what else was there is gone."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wanted = {name for name in listed.split("\0") if name and (root / name).is_file()}
    for path in [path for path in place.rglob("*") if path.is_file() or path.is_symlink()]:
        if path.relative_to(place).as_posix() not in wanted:
            path.unlink()
    for name in wanted:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
    return place


@contextlib.contextmanager
def mutated(tree: Path, mutation: Mutation, number: int) -> Iterator[None]:
    """The tree with one careless change in it.

    Python trusts a compiled file whose source has the size and the second of before: the mutant gets a second that
    nothing else has.
    """
    path = tree / mutation.path
    before, stat = path.read_bytes(), path.stat()
    try:
        path.write_bytes(mutation.applied(before))
        os.utime(path, (LIFTED + number, LIFTED + number))
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
