"""The bytes of a tensor, without bringing into memory what the process has not read yet.

A checkpoint is often a mapped file (safetensors, `torch.load(mmap=True)`), a page of which comes into the memory of the
process when it is first read: of an embedding table the rows that are looked up. Pages that are not there are read from
the file here, a piece at a time. Linux tells which ones those are (/proc/self/maps, proc(5), and /proc/self/pagemap,
the kernel's admin-guide/mm/pagemap); where it does not, everything is read where it lies.
"""

from __future__ import annotations

import mmap
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from attrs import frozen

from npucompose_replay.operands import memory_at

PAGE = mmap.PAGESIZE
PIECE = 1 << 20
"""Bytes that are read of a file at once, a multiple of a page."""
IN_MEMORY = 0b11 << 62
"""Of an entry of pagemap: the page is present, or swapped out and so none that the file has."""
MAPS, PAGEMAP = Path("/proc/self/maps"), Path("/proc/self/pagemap")


@frozen(kw_only=True)
class FileMapping:
    """Where a file, or a part of it, lies in the memory of this process, and which file it is."""

    begin: int
    end: int
    offset: int
    """Of `begin` in the file."""
    path: str
    device: int
    inode: int


def file_mappings() -> list[FileMapping]:
    """Of this process, by address; none where the system does not tell."""
    with suppress(OSError):
        lines = [line.split(maxsplit=5) for line in MAPS.read_text(errors="surrogateescape").splitlines()]
        return [_mapping(*line) for line in lines if len(line) == 6 and line[5].startswith("/")]
    return []


def _mapping(span: str, _: str, offset: str, device: str, inode: str, path: str) -> FileMapping:
    begin, end = (int(place, 16) for place in span.split("-"))
    major, minor = (int(number, 16) for number in device.split(":"))
    return FileMapping(
        begin=begin, end=end, offset=int(offset, 16), path=path, device=os.makedev(major, minor), inode=int(inode)
    )


def pieces(begin: int, nbytes: int, mappings: Sequence[FileMapping]) -> Iterator[bytes | memoryview]:
    """What lies at an address, in order; `mappings` as `file_mappings` has them now."""
    end = begin + nbytes
    place = bisect_right(mappings, begin, key=attrgetter("begin")) - 1
    if place < 0 or end > mappings[place].end:
        yield memory_at(begin, nbytes)
        return
    mapping = mappings[place]
    with ExitStack() as stack:
        runs = [*_runs(begin, end)]
        file = _opened(mapping, stack) if any(absent for _, _, absent in runs) else None
        for first, last, absent in runs:
            whole = None
            if absent and file is not None:
                read = os.pread(file, last - first, mapping.offset + first - mapping.begin)
                whole = read if len(read) == last - first else None
            yield memory_at(first, last - first) if whole is None else whole


def _opened(mapping: FileMapping, stack: ExitStack) -> int | None:
    """None where the path names another file by now, or no plain one."""
    with suppress(OSError):
        file = os.open(mapping.path, os.O_RDONLY)
        stack.callback(os.close, file)
        now = os.fstat(file)
        same = stat.S_ISREG(now.st_mode) and (now.st_dev, now.st_ino) == (mapping.device, mapping.inode)
        return file if same else None
    return None


def _runs(begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """(begin, end, absent) of neighbouring pages: those in memory, and those that are not, in pieces of the file."""
    pages = range(begin // PAGE, -(-end // PAGE))
    absent = _absent(pages)

    def alike(page: int) -> tuple[bool, int]:
        away = absent[page - pages.start]
        return away, page * PAGE // PIECE if away else 0

    for (away, _), run in groupby(pages, key=alike):
        first, *rest = run
        yield max(begin, first * PAGE), min(end, ((rest or [first])[-1] + 1) * PAGE), away


def _absent(pages: range) -> Sequence[bool]:
    """Of each page: it was not read yet, and never written to."""
    with suppress(OSError), PAGEMAP.open("rb", buffering=0) as pagemap:
        entries = array("Q", os.pread(pagemap.fileno(), 8 * len(pages), 8 * pages.start))
        if len(entries) == len(pages):
            return [entry & IN_MEMORY == 0 for entry in entries]
    return [False] * len(pages)
