"""Logs and graph dumps that TorchAir, GE and torch wrote, read as facts. Pure text: nothing is imported or run.

`read` takes every form, those of `device_files` too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from attrs import evolve

from npucompose.errors import ConfigError
from npucompose.results.artefacts import FileFacts
from npucompose_devtools.artefacts import dumps, logs
from npucompose_devtools.artefacts.artefact import FORMS, Artefact, GraphRead, Mark
from npucompose_devtools.artefacts.text import LIMIT_BYTES, blocks_of, opened, text_of
from npucompose_devtools.device_files import (
    captured_graphs,
    fx_listings,
    msprobe,
    profiles,
    runtime_logs,
    tensor_dumps,
)

__all__ = ["EVERY_FORM", "FORMS", "Artefact", "GraphRead", "Mark", "read"]

READERS = (dumps.read_listing, dumps.read_dump, logs.read)
"""Each returns None for a text that is not of its forms, and raises ConfigError for one that is and is cut off."""


FOLDER_READERS = (msprobe, tensor_dumps)
"""Of folders; each has a FORM and a `read` of a path, which returns None for a folder that is not of its form."""
DEVICE_READERS = (captured_graphs, fx_listings, profiles, runtime_logs)
"""Asked where none of READERS knows the text; each has a FORM and a `read` like theirs, of FileFacts."""
EVERY_FORM = (*FORMS.values(), *(reader.FORM for reader in DEVICE_READERS))
"""What a text may be, in words."""


def read(path: Path | str, *, limit: int = LIMIT_BYTES) -> Artefact | FileFacts:
    """What the file says, its form recognised by its content; of more than `limit` bytes only a log is read.

    ConfigError for a file that is not there, is binary, is cut off, or is of no form.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            return _long_log(path, file, size, limit)
        text = text_of(path, file, limit)
    try:
        if found := next(filter(None, (reader(text, path.name) for reader in READERS)), None):
            return _with_errors(found, runtime_logs.read(text, path.name))
        for reader in DEVICE_READERS:
            if (facts := reader.read(text, path.name)) is not None:
                return facts
    except (RecursionError, MemoryError):  # the latter: deeper than Python's parser goes
        raise ConfigError(f"{path} nests too deep to be read.") from None
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    forms = "; ".join(EVERY_FORM)
    raise ConfigError(f"{path} is no artefact that is read here. It begins with {first[:80]!r}. What is read: {forms}.")


def _with_errors(found: Artefact, more: FileFacts | None) -> Artefact | FileFacts:
    """One log may hold GE's lines and the runtime's."""
    return found if more is None or not more.errors else evolve(more, sinking=found.sinking)


def _long_log(path: Path, file: BinaryIO, size: int, limit: int) -> Artefact | FileFacts:
    """A log, read in one pass: it takes no more memory than what it says."""
    log, runtime, number, block = logs.CompilerLog(path.name), runtime_logs.RuntimeLog(), 0, b""
    marks = [mark.encode() for mark in (*logs.MARKS, *runtime_logs.marks())]
    for block in blocks_of(path, file):
        if not (log.waits or runtime.waits or any(mark in block for mark in marks)):
            number += block.count(b"\n")
            log.pass_over(block.count(b"\n"), block[-100:].decode("utf-8", "replace"))
            continue
        for number, line in enumerate(block.decode("utf-8", "replace").splitlines(), number + 1):  # noqa: B020
            log.take(line)
            runtime.take(number, line)
    found, more = log.artefact(ends=block.endswith(b"\n")), runtime.facts()
    if found is None and more is None:
        raise ConfigError(
            f"{path} has {size} bytes, and no line of it is of a log that is read here; of a dump at most {limit} are "
            "read: dump the graph without weights, DUMP_GE_GRAPH=2."
        )
    return _with_errors(found, more) if found is not None else more or FileFacts()


def _folder(path: Path) -> FileFacts:
    for reader in FOLDER_READERS:
        if (tensors := reader.read(path)) is not None:
            return FileFacts(tensors=tensors)
    inside = sorted(one.name for one in path.iterdir() if one.is_dir())[:8]
    below = f" It has the folders {', '.join(inside)}: give the one of a single step and rank." if inside else ""
    forms = "; ".join(reader.FORM for reader in FOLDER_READERS)
    raise ConfigError(f"{path} is no dump that is read here. What is read: {forms}.{below}")
