"""Which commit the working folder is at, and whether its files were changed since; of a repository that may be a
stranger's.

git itself is not run: it starts what the repository's configuration names. What a filter would have to be started for
is not known, and so said.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import error as StructError

from attrs import frozen

from airflow_free.foreign_files import foreign_owner, read_bytes
from npucompose.measure import git_files
from npucompose.measure.git_files import IndexEntry, TreeHash, index_entries, object_hash

BUDGET_S = 2.0
"""For the comparison of the files; where it takes longer, whether they were changed is not known."""
_READS = (OSError, ValueError, IndexError, StructError, zlib.error, RecursionError)
"""What reading a file of any content raises."""
_FILTERS = re.compile(rb"filter|ident|working-tree-encoding|\[attr\]")
"""Attributes by which git keeps another content than the file's; that of line ends shows in the file."""
_NO_MODES = re.compile(rb"filemode\s*=\s*(false|no|off|0)", re.IGNORECASE)
_SETTING = 2**20
_LINK, _SUBMODULE, _FOLDER = 0o120000, 0o160000, 0o040000
_log = logging.getLogger(__name__)


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """(commit, whether tracked files were changed) of the working folder; (None, None) outside a repository, and for
    one that belongs to another user, which is reported and not read.

    Of the working folder and not of the package: an installed package may lie in a .venv inside somebody's repository,
    whose commit says nothing about it.
    """
    try:
        repository = Repository.around(Path(folder or ".").resolve())
        if repository is None:
            return None, None
        commit = git_files.head(repository.own)
    except _READS:
        return None, None
    try:
        return commit, repository.is_changed(commit)
    except _READS:
        return commit, None


@frozen
class Repository:
    top: Path
    """Of the work tree."""
    own: Path
    """Its `.git`."""

    @classmethod
    def around(cls, folder: Path) -> Repository | None:
        for place in (folder, *folder.parents):
            own = git_files.git_dir(place)
            if own is None:
                continue
            for one in (place, own, own.resolve(), git_files.common_dir(own)):
                if (owner := foreign_owner(one)) is not None:
                    _log.warning("%s belongs to another user (number %d): its commit is not read.", one, owner)
                    return None
            return cls(place, own)
        return None

    def is_changed(self, commit: str) -> bool | None:
        """What `git status` says of tracked files; None where only a filter, or more time, could show it."""
        length = len(commit) // 2
        file = self.own / "index"
        data = read_bytes(file, git_files.MOST_BYTES)
        written_ns = file.stat().st_mtime_ns
        modes = not _NO_MODES.search(self._text(git_files.common_dir(self.own) / "config"))
        tree, answers, ends = TreeHash.of_length(length), set[bool | None](), time.monotonic() + BUDGET_S
        for number, entry in enumerate(index_entries(data, length)):
            if entry.stage or entry.only_meant:
                return True
            if number % 100 == 0 and time.monotonic() > ends:
                return None
            tree.add(entry)
            answers.add(self._differs(entry, written_ns, modes=modes))
            if True in answers:
                return True
        if tree.whole() != git_files.tree_of(commit, git_files.common_dir(self.own)):
            return True
        return None if None in answers else False

    def _differs(self, entry: IndexEntry, written_ns: int, *, modes: bool) -> bool | None:
        """Whether a file is another than the index holds: by what the index remembers of it, then by its content."""
        parts = entry.name.rstrip(b"/").split(b"/")
        if not {b"", b".", b"..", b".git"}.isdisjoint(parts):
            raise ValueError("a name that leads out of the work tree")
        kind = entry.mode & 0o170000
        if entry.unwatched or kind == _FOLDER:
            return False
        path = self.top / os.fsdecode(entry.name)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        if kind == _SUBMODULE:
            return _is_at_another(path, entry.hash.hex())
        if stat.S_IFMT(found.st_mode) != kind or (modes and kind != _LINK and (entry.mode ^ found.st_mode) & 0o100):
            return True
        (changed_s, _, written_s, written_part, *_, size) = entry.stat
        if size and size != found.st_size & 2**32 - 1:
            return True
        same_time = divmod(found.st_mtime_ns, 10**9) == (written_s, written_part or found.st_mtime_ns % 10**9)
        # Within a tick of the index's own time a file can change without a trace.
        if same_time and int(found.st_ctime) == changed_s and size and found.st_mtime_ns + 10**7 < written_ns:
            return False
        content = os.fsencode(os.readlink(path)) if kind == _LINK else read_bytes(path, git_files.MOST_BYTES)
        if object_hash(b"blob", content, len(entry.hash)) == entry.hash:
            return False
        filtered = kind != _LINK and (b"\r" in content or any(map(_FILTERS.search, self._attributes(path))))
        return None if filtered else True

    def _attributes(self, path: Path) -> Iterator[bytes]:
        """Texts that may say how git keeps the file."""
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git" / "attributes"
        for folder in path.parents:
            yield self._text(folder / ".gitattributes")
            if folder == self.top:
                break
        for file in (git_files.common_dir(self.own) / "info" / "attributes", home, Path("/etc/gitattributes")):
            yield self._text(file)

    @staticmethod
    def _text(file: Path) -> bytes:
        return read_bytes(file, _SETTING, named=True) if file.exists() else b""


def _is_at_another(submodule: Path, commit: str) -> bool:
    """Whether a submodule is at another commit; its own files are not compared."""
    own = git_files.git_dir(submodule)
    return own is not None and git_files.head(own) != commit
