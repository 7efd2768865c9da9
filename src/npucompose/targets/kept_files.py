"""The files of kept graphs: facts as JSON, constants byte for byte, libraries of kernels by what is in them.

A folder for each key lies in the cache of the machine, made for its owner alone. What others could have written there,
and what is not what was written, is not there.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from npucompose import private
from npucompose.machine import cache_dir
from npucompose.replay.written_plan import WrittenPlan

FOLDER = "graphs"
MOST_KEPT = 4 << 30
"""So many bytes are kept of all graphs; those that were used longest ago go first."""
ALIGNED = 64
"""Bytes: where constants begin in their file."""


def folder_of(key: str) -> Path:
    return cache_dir() / FOLDER / key


@frozen(kw_only=True)
class KeptFiles:
    """What `_write` wrote beside the facts."""

    constants: Sequence[torch.UntypedStorage]
    libraries: Sequence[str]


def write(place: Path, facts: Mapping[str, Any], plan: WrittenPlan) -> None:
    """The facts last: they name the other files, with a digest of each."""
    root, libraries = cache_dir(), list[str]()
    content = bytearray()
    sizes: list[int] = []
    for constant in plan.constants:
        storage = constant.untyped_storage()
        content += bytes(-len(content) % ALIGNED)
        if storage.nbytes():
            content += ctypes.string_at(storage.data_ptr(), storage.nbytes())
        sizes.append(storage.nbytes())
    for library in plan.libraries:
        code = Path(library).read_bytes()
        name = f"{hashlib.sha256(code).hexdigest()[:32]}.so"
        if not (place.parent / name).is_file():
            private.keep(place.parent / name, root, code)
        libraries.append(name)
    private.keep(place.with_suffix(".bin"), root, bytes(content))
    more = {"libraries": libraries, "sizes": sizes, "digest": hashlib.sha256(content).hexdigest()}
    private.keep(place.with_suffix(".json"), root, json.dumps({**facts, **more}))


def facts_in(file: Path) -> dict[str, Any]:
    """{} for no file, and for one that is none or that others could have written."""
    try:
        found = json.loads(private.read(file, cache_dir()) or "{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read(place: Path, facts: Mapping[str, Any]) -> KeptFiles | None:
    """None where a file lacks, is not what was written, or could be somebody else's."""
    libraries = [place.parent / name for name in facts["libraries"]]
    content = place.with_suffix(".bin")
    if any(not file.is_file() or private.doubt(file, cache_dir()) for file in (content, *libraries)):
        return None
    data = content.read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["digest"]:
        return None
    if any(hashlib.sha256(file.read_bytes()).hexdigest()[:32] != file.stem for file in set(libraries)):
        return None
    with suppress(OSError):
        content.touch()
    return KeptFiles(constants=list(_storages(data, facts["sizes"])), libraries=[str(file) for file in libraries])


def _storages(data: bytes, sizes: Sequence[int]) -> Iterator[torch.UntypedStorage]:
    at = 0
    for nbytes in sizes:
        at += -at % ALIGNED
        storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        ctypes.memmove(storage.data_ptr(), data[at : at + nbytes], nbytes)
        at += nbytes
        yield storage


def make_room(folder: Path, newest: Path) -> None:
    """Let go of what was used longest ago."""
    with suppress(OSError):
        sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folder.iterdir() if one.is_dir()}
        used = {one: max(file.stat().st_mtime for file in one.iterdir()) for one in sizes if any(one.iterdir())}
        for oldest in sorted(used, key=used.__getitem__):
            if sum(sizes.values()) <= MOST_KEPT:
                return
            if oldest != newest:
                shutil.rmtree(oldest, ignore_errors=True)
                del sizes[oldest]


def keep_facts(file: Path, facts: Mapping[str, Any]) -> None:
    private.keep(file, cache_dir(), json.dumps(facts))
