"""Folders out of which compilers load code and pickles that they made earlier: each belongs to this user alone.

Inductor unpickles what it finds in a folder for temporary files, whose name another user can foretell and take first.
"""

from __future__ import annotations

import atexit
import getpass
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from npucompose import private
from npucompose.machine import cache_dir


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
        found = _doubt(place)
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


def _doubt(place: Path) -> private.AccessDoubt | None:
    """Whether somebody else could have written anything in it. Nobody else gets into a folder that is closed to all."""
    found = private.doubt(place, place)
    if found is None and place.is_dir() and place.stat().st_mode & 0o077:
        found = private.doubt_within(place, place)
    return found


def place_of_ours(name: str) -> Path:
    """A folder in our own cache; where that cannot be had, for this process alone."""
    place = cache_dir() / "compiled" / name
    try:
        private.make(place, cache_dir())
    except OSError:
        pass
    else:
        if private.doubt(place, cache_dir()) is None:
            return place
    alone = tempfile.mkdtemp(prefix="npucompose-")
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)
