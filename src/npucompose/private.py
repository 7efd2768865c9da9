"""Folders of what is loaded later: made for their owner alone, believed only where nobody else could have written; and
those of the compilers, each of which belongs to this user alone.

A digest beside a file says that the file is whole; it does not say who wrote the two.
"""

from __future__ import annotations

import atexit
import getpass
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from npucompose.machine import cache_dir

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_POSIX = hasattr(os, "geteuid")
"""Elsewhere a folder of a user's is his by other means, and nothing here is asked."""


@frozen
class AccessDoubt:
    """Why something is not believed. What is `mine` can be closed and made anew; what is not stays another's."""

    words: str
    mine: bool


def doubt(path: Path, root: Path) -> AccessDoubt | None:
    """Whether someone else could have written `path`, which lies in `root`, a folder for private things: a file or a
    folder on the way to it that is not ours (or root's), that others may write, or that is a link. None: it is ours
    alone, or is not there yet.

    Of what lies above `root` only the next folder is looked at: in one that all may write, and that is not sticky as
    /tmp is, `root` could be exchanged for another.
    """
    if not _POSIX:
        return None
    given, root = root, Path(os.path.realpath(root))
    if found := _doubt_above(root.parent):
        return found
    return next((found for place in (root, *_way(path, given)) if (found := _doubt(place))), None)


def doubt_within(folder: Path, root: Path) -> AccessDoubt | None:
    """The same about a folder and all that lies in it."""
    if found := doubt(folder, root):
        return found
    return next((found for place in _below(folder) if (found := _doubt(place))), None) if _POSIX else None


def make(folder: Path, root: Path) -> None:
    """Make `folder`, and what lacks on the way to it from `root`, for its owner alone; close what is there already."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for place in (root, *_way(folder, root)):
        place.mkdir(mode=0o700, exist_ok=True)
        if _POSIX and stat.S_IMODE(place.stat().st_mode) != 0o700:
            place.chmod(0o700)


def close(folder: Path) -> None:
    """Take from others what they may write in a folder of ours."""
    for place in (folder, *_below(folder)):
        mode = place.lstat().st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            place.chmod(stat.S_IMODE(mode) & ~_OTHERS)


def read(file: Path, root: Path) -> str | None:
    """The text of a file that `keep` wrote; None where there is none, and for one that others could have written."""
    return file.read_text(encoding="utf-8") if file.is_file() and doubt(file, root) is None else None


def keep(file: Path, root: Path, *content: str | bytes | memoryview) -> None:
    """Write a file of these parts, whole or not at all; where nothing can be kept, there is none the next time."""
    with suppress(OSError):
        make(file.parent, root)
        beside = file.with_suffix(f".{os.getpid()}")
        with beside.open("wb") as stream:
            for part in content:
                stream.write(part.encode() if isinstance(part, str) else part)
        close(file.parent)
        beside.replace(file)


def _way(path: Path, root: Path) -> Iterator[Path]:
    """What lies on the way from `root`, `path` itself last."""
    parts = path.relative_to(root).parts
    return (root.joinpath(*parts[: n + 1]) for n in range(len(parts)))


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def _doubt(place: Path) -> AccessDoubt | None:
    try:
        found = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return AccessDoubt(f"{place} belongs to another user (number {found.st_uid})", mine=False)
    if stat.S_ISLNK(found.st_mode):
        return AccessDoubt(f"{place} is a link", mine=True)
    if found.st_mode & _OTHERS:
        return AccessDoubt(f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):o})", mine=True)
    return None


def _doubt_above(place: Path) -> AccessDoubt | None:
    try:
        mode = place.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return AccessDoubt(f"{place} can be written by everybody (mode {stat.S_IMODE(mode):o})", mine=False)
    return None


# Folders out of which compilers load code and pickles that they made earlier. Inductor unpickles what it finds in a
# folder for temporary files, whose name another user can foretell and take first.


def _inductors() -> Path:
    """torch/_inductor/runtime/cache_dir_utils.py, default_cache_dir (torch 2.7 to 2.14)."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


@frozen
class ExecutedCache:
    name: str
    variable: str
    usual: Callable[[], Path]
    made_here: bool = False
    """Its usual place is one where anybody can make a folder: made before anybody else does."""


CACHES = (
    ExecutedCache("inductor", "TORCHINDUCTOR_CACHE_DIR", _inductors, made_here=True),
    ExecutedCache("triton", "TRITON_CACHE_DIR", lambda: Path.home() / ".triton" / "cache"),
    ExecutedCache(
        "vllm", "VLLM_CACHE_ROOT", lambda: Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm"
    ),
)


def make_private() -> tuple[str, ...]:
    """Have every such cache lie where nobody else could have written; one that does not is left alone, and reported in
    a line on stderr with the folder that takes its place. The places that are used.

    Called before a compiler looks for its cache, by who starts the process of that: all that lies in them is looked at
    once, and the workers `take` the answer.
    """
    for cache in CACHES:
        given = os.environ.get(cache.variable)
        place = Path(given) if given else cache.usual()
        if place in _SEEN:
            continue
        if cache.made_here and not given:
            with suppress(OSError):  # where it cannot be made, the compiler says so
                place.mkdir(mode=0o700)
        found = _doubt_of_cache(place)
        if found is not None:
            instead = place_of_ours(cache.name)
            print(
                f"npucompose: the compiled code in {place} is not used, {found.words}; {instead} is.", file=sys.stderr
            )
            os.environ[cache.variable] = str(instead)
            place = instead
        _SEEN.add(place)
    return tuple(map(str, _SEEN))


def take(places: Iterable[str]) -> None:
    """What the process that started this one has looked at, on this machine and a moment ago."""
    _SEEN.update(map(Path, places))


_SEEN: set[Path] = set()
"""Places that this process has looked at, all that lies in them included."""


def _doubt_of_cache(place: Path) -> AccessDoubt | None:
    """Whether somebody else could have written anything in it. Nobody else gets into a folder that is closed to all."""
    found = doubt(place, place)
    if found is None and place.is_dir() and place.stat().st_mode & 0o077:
        found = doubt_within(place, place)
    return found


def place_of_ours(name: str) -> Path:
    """A folder in our own cache; where that cannot be had, for this process alone."""
    place = cache_dir() / "compiled" / name
    try:
        make(place, cache_dir())
    except OSError:
        pass
    else:
        if doubt(place, cache_dir()) is None:
            return place
    alone = tempfile.mkdtemp(prefix="npucompose-")
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)
