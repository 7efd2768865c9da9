"""The files of kept graphs: facts as JSON, constants byte for byte, libraries of kernels by what is in them.

A folder for each key lies in the cache of the machine, made for its owner alone. What others could have written there,
and what is not what was written, is not there.
"""

from __future__ import annotations

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
from npucompose_replay.operands import memory_at
from npucompose_replay.written_plan import WrittenPlan

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
    storages = [constant.untyped_storage() for constant in plan.constants]
    found = hashlib.sha256()
    for part in _content(storages):
        found.update(part)
    for library in plan.libraries:
        code = Path(library).read_bytes()
        name = f"{hashlib.sha256(code).hexdigest()[:32]}.so"
        if not (place.parent / name).is_file():
            private.keep(place.parent / name, root, code)
        libraries.append(name)
    private.keep(place.with_suffix(".bin"), root, *_content(storages))
    sizes = [storage.nbytes() for storage in storages]
    more = {"libraries": libraries, "sizes": sizes, "digest": found.hexdigest()}
    private.keep(place.with_suffix(".json"), root, json.dumps({**facts, **more}))


def _content(storages: Sequence[torch.UntypedStorage]) -> Iterator[bytes | memoryview]:
    """What the file of constants consists of: where they lie in memory, of which no copy is made."""
    at = 0
    for storage in storages:
        yield bytes(-at % ALIGNED)
        yield memory_at(storage.data_ptr(), storage.nbytes())
        at += -at % ALIGNED + storage.nbytes()


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
    constants = _constants(content, facts["sizes"], facts["digest"])
    if constants is None:
        return None
    if any(hashlib.sha256(file.read_bytes()).hexdigest()[:32] != file.stem for file in set(libraries)):
        return None
    with suppress(OSError):
        content.touch()
    return KeptFiles(constants=constants, libraries=[str(file) for file in libraries])


def _constants(file: Path, sizes: Sequence[int], digest: str) -> list[torch.UntypedStorage] | None:
    """Read to where they will lie; None for a file that is not the one of `digest`."""
    found, storages = hashlib.sha256(), list[torch.UntypedStorage]()
    with file.open("rb") as stream:
        for nbytes in sizes:
            storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
            memory = memory_at(storage.data_ptr(), storage.nbytes())
            found.update(stream.read(-stream.tell() % ALIGNED))
            if stream.readinto(memory) != nbytes:
                return None
            found.update(memory)
            storages.append(storage)
        found.update(stream.read())
    return storages if found.hexdigest() == digest else None


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
