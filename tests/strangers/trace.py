"""A system call trace as the oracle: which process was started, which file written, which address asked for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from tests.strangers.judge import MARK

CALLS = (
    "execve,execveat,clone,clone3,fork,vfork,socket,connect,bind,sendto,open,openat,openat2,creat,mkdir,mkdirat,rename,"
    "renameat,renameat2,unlink,unlinkat,rmdir,symlink,symlinkat,link,linkat,chmod,fchmodat,chown,lchown,fchownat,truncate,"
    "mknod,mknodat,ptrace,kill,tkill"
)
LINE = re.compile(r"^(\d+)\s+(?:[\d.]+ )?(\w+)\((.*)$")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
BASE = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
CHANGES = frozenset(CALLS.split(",")[12:-3])
"""creat and all after it: they change files whatever their flags."""


def command(program: Sequence[str], out: Path) -> list[str]:
    """The program under strace; its trace goes to `out`."""
    return ["strace", "-f", "-y", "-s", "400", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(out), *program]


def is_there() -> bool:
    return shutil.which("strace") is not None


@frozen
class Did:
    """`Did("writes", "/tmp/x")`; kinds are starts, forks, writes, reads, asks and signals."""

    kind: str
    what: str


def done(trace: Iterable[str]) -> Iterator[tuple[int, Did]]:
    """(number of the case, what was done) of each call that acts; -1 between cases."""
    number = -1
    for line in trace:
        found = LINE.match(line)
        if found is None:
            continue
        _, call, rest = found.groups()
        texts = [_plain(text) for text in TEXT.findall(rest)]
        if texts and texts[0].startswith(MARK):
            number = int(texts[0].removeprefix(MARK))
            continue
        for did in _acts(call, rest, texts):
            yield number, did


def _acts(call: str, rest: str, texts: list[str]) -> Iterator[Did]:
    if call in ("execve", "execveat"):
        if "ENOENT" not in rest:
            yield Did("starts", " ".join(texts[:3]))
    elif call in ("clone", "clone3", "fork", "vfork"):
        if "CLONE_THREAD" not in rest:
            yield Did("forks", rest[:200])
    elif call in ("socket", "connect", "bind", "sendto"):
        family = re.search(r"AF_[A-Z0-9]+", rest)
        local = family is None or family[0] == "AF_UNIX"  # a pair of sockets; libc's question for a cache of names
        if not local or (call == "connect" and "/nscd/" not in rest):
            yield Did("asks", f"{call}({rest[:200]}")
    elif call in ("kill", "tkill", "ptrace"):
        yield Did("signals", f"{call}({rest[:80]}")
    elif call in ("mkdir", "mkdirat") and "EEXIST" in rest:
        return  # a folder that is there stays what it is
    elif call in CHANGES or WRITES.search(rest):
        base = BASE.match(rest)
        for text in texts:
            yield Did("writes", text if text.startswith("/") or base is None else f"{base[1]}/{text}")
    elif texts:
        yield Did("reads", texts[0])


def _plain(text: str) -> str:
    """What strace wrote as escapes."""
    octets = text.encode("latin-1", "replace").decode("unicode_escape", "replace")
    return octets.encode("latin-1", "replace").decode("utf-8", "replace")
