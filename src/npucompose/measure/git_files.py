"""A repository's own files, read as data: the commit that HEAD names, the tree of a commit, the index.

Nothing is started: no git, and so no filter, hook or helper that a configuration names. Every length is checked against
the file before it is believed; what is no such file is a ValueError. Formats: git's Documentation/gitformat-*.adoc.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from attrs import define, frozen

from airflow_free.foreign_files import open_regular, read_bytes

HASH = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"ref: (refs/[^\x00-\x20\x7f\\~^:?*\[]+)\s*")
MOST_IN_A_NAME, MOST_BYTES, MOST_IN_A_COMMIT = 4096, 2**28, 2**20
"""Bytes of a file's name, of the index and packed refs, of a commit."""
MOST_PACKS, MOST_DELTAS = 1000, 300
_HEADED = 256
"""Bytes of a commit that are unpacked: it begins with its tree."""


def git_dir(folder: Path) -> Path | None:
    """Of the work tree whose top `folder` is: `.git`, or where the file of that name says."""
    place = folder / ".git"
    if place.is_dir():
        return place if (place / "HEAD").exists() else None
    if not place.is_file():
        return None
    said = read_bytes(place, MOST_IN_A_NAME)
    return folder / os.fsdecode(said[8:].rstrip(b"\r\n")) if said.startswith(b"gitdir: ") else None


def common_dir(own: Path) -> Path:
    """Where refs and objects are: another folder for an additional work tree."""
    file = own / "commondir"
    return own / os.fsdecode(read_bytes(file, MOST_IN_A_NAME).rstrip(b"\r\n")) if file.is_file() else own


def head(own: Path) -> str:
    """The commit that HEAD names."""
    common, place = common_dir(own), own / "HEAD"
    for _ in range(5):
        text = read_bytes(place, MOST_IN_A_NAME)
        if found := HASH.fullmatch(text.strip()):
            return found[0].decode()
        named = _REF.fullmatch(text)
        if named is None or b".." in named[1]:
            break
        place = common / os.fsdecode(named[1])
        if not place.exists():
            return _packed_ref(common / "packed-refs", named[1])
    raise ValueError("HEAD names no commit")


def _packed_ref(file: Path, name: bytes) -> str:
    with open_regular(file, MOST_BYTES) as lines:
        for line in iter(lambda: lines.readline(MOST_IN_A_NAME), b""):
            commit, _, of = line.rstrip(b"\n").partition(b" ")
            if of == name and HASH.fullmatch(commit):
                return commit.decode()
    raise ValueError("HEAD names a branch without a commit")


# Objects.


def tree_of(commit: str, common: Path) -> str:
    """The tree of a commit. FileNotFoundError where the repository does not hold it, as in a partial clone."""
    for place in _object_folders(common / "objects", 5):
        loose = place / commit[:2] / commit[2:]
        if loose.exists():
            text = zlib.decompressobj().decompress(read_bytes(loose, MOST_IN_A_COMMIT), _HEADED)
            kind, _, text = text.partition(b"\0")
            if not kind.startswith(b"commit "):
                raise ValueError("no commit")
            return _tree_line(text)
        for index in islice((place / "pack").glob("*.idx"), MOST_PACKS):
            offset = _offset_in(index, bytes.fromhex(commit))
            if offset is not None:
                with open_regular(index.with_suffix(".pack"), 2**40) as pack:
                    return _tree_line(_unpacked(pack, offset, index, len(commit) // 2))
    raise FileNotFoundError(commit)


def _tree_line(text: bytes) -> str:
    found = re.match(rb"tree (" + HASH.pattern + rb")\n", text)
    if found is None:
        raise ValueError("a commit without a tree")
    return found[1].decode()


def _object_folders(place: Path, deep: int) -> Iterator[Path]:
    """This one and those that it names as further ones."""
    yield place
    others = place / "info" / "alternates"
    if deep and others.is_file():
        for line in read_bytes(others, MOST_IN_A_NAME).splitlines():
            if line and not line.startswith(b"#"):
                yield from _object_folders(place / os.fsdecode(line), deep - 1)


def _offset_in(index: Path, name: bytes) -> int | None:
    """Where the object begins in the pack of this index; None where it is not in it."""
    with open_regular(index, 2**34) as file:
        if file.read(8) != b"\xfftOc\x00\x00\x00\x02":
            raise ValueError("an index of packs of another version")
        fan = struct.unpack(">256I", _exactly(file, 1024))
        low, high, count = (fan[name[0] - 1] if name[0] else 0), fan[name[0]], fan[255]
        while low < high:
            middle = (low + high) // 2
            found = _at(file, 1032 + middle * len(name), len(name))
            if found == name:
                after = 1032 + count * (len(name) + 4)
                (offset,) = struct.unpack(">I", _at(file, after + middle * 4, 4))
                if offset >> 31:
                    (offset,) = struct.unpack(">Q", _at(file, after + count * 4 + (offset & 2**31 - 1) * 8, 8))
                return offset
            low, high = (middle + 1, high) if found < name else (low, middle)
    return None


def _unpacked(pack: BinaryIO, offset: int, index: Path, length: int, deltas: int = MOST_DELTAS) -> bytes:
    """The whole commit that begins there."""
    entry = _at(pack, offset, MOST_IN_A_COMMIT, least=2)
    kind, size, at = entry[0] >> 4 & 7, entry[0] & 15, 1
    shift = 4
    while entry[at - 1] & 128:
        size |= (entry[at] & 127) << shift
        at, shift = at + 1, shift + 7
    if size > MOST_IN_A_COMMIT or kind not in (1, 6, 7) or not deltas:
        raise ValueError("no commit of a usual size")
    base: int | None = None
    if kind == 6:
        base, byte = entry[at] & 127, entry[at]
        at += 1
        while byte & 128:
            byte = entry[at]
            base, at = (base + 1 << 7) | byte & 127, at + 1
        base = offset - base
    elif kind == 7:
        base, at = _offset_in(index, entry[at : at + length]), at + length
    data = zlib.decompressobj().decompress(entry[at:], size)
    if kind == 1:
        return data
    if base is None or base < 0:
        raise ValueError("a difference to nothing")
    return _patched(_unpacked(pack, base, index, length, deltas - 1), data)


def _patched(base: bytes, delta: bytes) -> bytes:
    """gitformat-pack, "Deltified representation"."""
    at, made = 0, bytearray()
    for _ in range(2):  # two sizes, which the result has anyway
        while delta[at] & 128:
            at += 1
        at += 1
    while at < len(delta):
        code, at = delta[at], at + 1
        if code & 128:
            values = [0, 0]
            for bit in range(7):
                if code & 1 << bit:
                    values[bit // 4] |= delta[at] << 8 * (bit % 4)
                    at += 1
            start, length = values[0], values[1] or 0x10000
            made += base[start : start + length]
        else:
            made += delta[at : at + code]
            at += code
        if len(made) > MOST_IN_A_COMMIT or not code:
            raise ValueError("no commit of a usual size")
    return bytes(made)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ValueError("a file that was cut off")
    return data


def _at(file: BinaryIO, offset: int, size: int, least: int | None = None) -> bytes:
    file.seek(offset)
    return _exactly(file, size) if least is None else _exactly(file, least) + file.read(size - least)


# The index.


@frozen
class IndexEntry:
    name: bytes
    mode: int
    stat: tuple[int, ...]
    """Seconds and nanoseconds of change of status and of content, device, inode, mode, user, group, size."""
    hash: bytes
    stage: int
    unwatched: bool
    """git was asked to believe that the file is as it was, or not to write it."""
    only_meant: bool
    """`git add --intent-to-add`: of no tree."""


def index_entries(data: bytes, length: int) -> Iterator[IndexEntry]:
    """Of an index file, whose hashes have `length` bytes. ValueError where it is none, or another file holds a part."""
    if len(data) < 12 + length or data[:4] != b"DIRC":
        raise ValueError("no index")
    version, count = struct.unpack_from(">2I", data, 4)
    if version not in (2, 3, 4) or count > len(data) // (42 + length):
        raise ValueError("an index of another form")
    at, end, before = 12, len(data) - length, b""
    for _ in range(count):
        start = at
        if at + 42 + length > end:
            raise ValueError("an index that was cut off")
        stat = struct.unpack_from(">10I", data, at)
        (flags,) = struct.unpack_from(">H", data, at + 40 + length)
        more, at = 0, at + 42 + length
        if flags & 0x4000:
            (more,) = struct.unpack_from(">H", data, at)
            at += 2
        kept = 0
        if version == 4:
            strip, at = _varint(data, at)
            kept = max(len(before) - strip, 0)
        stop = data.find(b"\0", at, at + MOST_IN_A_NAME + 1)
        if stop < 0 or kept + stop - at > MOST_IN_A_NAME:
            raise ValueError("a name without an end")
        before = before[:kept] + data[at:stop]
        at = stop + 1 if version == 4 else start + (stop - start + 8) // 8 * 8
        yield IndexEntry(
            name=before, mode=stat[6], stat=stat, hash=data[start + 40 : start + 40 + length], stage=flags >> 12 & 3,
            unwatched=bool(flags & 0x8000 or more & 0x4000), only_meant=bool(more & 0x2000),
        )  # fmt: skip
    while at + 8 <= end:
        if data[at : at + 1].islower() and data[at : at + 4] != b"sdir":
            raise ValueError("an index that another file completes")
        at += 8 + struct.unpack_from(">I", data, at + 4)[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 127
    while data[at] & 128:
        at += 1
        value = (value + 1 << 7) | data[at] & 127
        if value > MOST_IN_A_NAME:
            raise ValueError("no name is so long")
    return value, at + 1


@define
class TreeHash:
    """The tree that `git write-tree` would make of entries in the index's order."""

    length: int
    _open: list[tuple[bytes, bytearray]]

    @classmethod
    def of_length(cls, length: int) -> TreeHash:
        return cls(length, [(b"", bytearray())])

    def add(self, entry: IndexEntry) -> None:
        folder, _, name = entry.name.rstrip(b"/").rpartition(b"/")
        prefix = folder + b"/" if folder else b""
        while not prefix.startswith(self._open[-1][0]):
            self._close()
        while self._open[-1][0] != prefix:
            at = prefix.index(b"/", len(self._open[-1][0])) + 1
            self._open.append((prefix[:at], bytearray()))
        self._open[-1][1].extend(b"%o %s\0%s" % (entry.mode, name, entry.hash))

    def whole(self) -> str:
        while len(self._open) > 1:
            self._close()
        return self._hashed(self._open[0][1]).hex()

    def _close(self) -> None:
        path, content = self._open.pop()
        above, into = self._open[-1]
        into.extend(b"40000 %s\0%s" % (path[len(above) : -1], self._hashed(content)))

    def _hashed(self, content: bytes | bytearray) -> bytes:
        return object_hash(b"tree", content, self.length)


def object_hash(kind: bytes, content: bytes | bytearray, length: int) -> bytes:
    """Under which git keeps the content; of 20 bytes, or of 32 in a repository that says so."""
    digest = hashlib.sha1(usedforsecurity=False) if length == 20 else hashlib.sha256()
    digest.update(b"%s %d\0" % (kind, len(content)))
    digest.update(content)
    return digest.digest()
