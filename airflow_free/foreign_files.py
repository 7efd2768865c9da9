"""Files that lie where a stranger may have put them: opened once, as regular files, within a bound, through no link.

A pipe would hang who opens it, a device never end, and a link lead to a file of the reader's own.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LINKS = getattr(os, "O_NOFOLLOW", 0)
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class UnusableFile(OSError):
    """Why a file is not read: str(e) goes on from its name, `is no file`."""


def open_regular(path: str | os.PathLike[str], most_bytes: int, *, named: bool = False) -> BinaryIO:
    """The file, for reading. UnusableFile for what is no regular file, has more bytes, or is a link, which is followed
    only where a person has `named` this very path."""
    try:
        handle = os.open(path, _FLAGS | (0 if named else LINKS))
    except OSError as error:
        if error.errno == errno.ELOOP and not named and os.path.islink(path):
            raise UnusableFile("is a link, and no link is followed out of a folder: name the file itself") from None
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):  # a socket, a device of no machine
            raise UnusableFile("is no file that can be opened") from None
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFile("is no file")
        if found.st_size > most_bytes:
            raise UnusableFile(f"has {found.st_size:,} bytes; a file of more than {most_bytes:,} is not read")
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_bytes(path: str | os.PathLike[str], most_bytes: int, *, named: bool = False) -> bytes:
    """All that is in the file, as `open_regular` opens it."""
    with open_regular(path, most_bytes, named=named) as file:
        return read_open(file, most_bytes)


def read_open(file: BinaryIO, most_bytes: int) -> bytes:
    """All that is in an opened file from here on; it may be longer than it says, or grow meanwhile."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UnusableFile(f"is longer than {most_bytes:,} bytes and is not read")
    return data


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a file lies there that is no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def foreign_owner(path: Path) -> int | None:
    """The number of the user to whom the path belongs, where that is neither this user nor root, nor the one who asked
    `sudo` for root's rights; None also where nothing lies there, and on systems without such numbers."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        owner = path.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    own = {os.geteuid(), 0}
    if os.geteuid() == 0 and (asked := os.environ.get("SUDO_UID", "")).isdecimal():
        own.add(int(asked))
    return None if owner in own else owner
