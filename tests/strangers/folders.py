# ruff: noqa: E501  tables
"""What a stranger's folder could hold beside npucompose's own files: a repository, a ledger with its companions, a
store, tensors. Added to the corpus by `corpus.py`.
"""

from __future__ import annotations

import hashlib
import io
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

Files = dict[str, "str | bytes"]
LEDGER = ".npucompose/sweeps.sqlite"


@frozen(kw_only=True)
class Folder:
    name: str
    files: Files
    command: tuple[str, ...]


# Repositories: read by `npucompose run`, and by `git_state` alone in the command of these cases.

STATE = ("--repository",)
"""Instead of a command line: what is recorded of the working folder (`judge.py`)."""
TOUCH = "touch executed; cat"
PROGRAMS = (
    "core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.askPass", "core.hooksPath", "core.gitProxy",
    "filter.x.clean", "filter.x.smudge", "filter.x.process", "diff.external", "diff.x.command", "diff.x.textconv",
    "merge.x.driver", "credential.helper", "gpg.program", "gpg.ssh.program", "sequence.editor", "alias.rev-parse",
    "alias.diff-files", "alias.status", "uploadpack.packObjectsHook", "trailer.x.command", "interactive.diffFilter",
    "pager.diff", "remote.x.uploadpack", "remote.x.vcs", "submodule.sub.update", "protocol.ext.allow", "ssh.variant",
)  # fmt: skip
HOOKS = (
    "post-index-change",
    "fsmonitor-watchman",
    "pre-commit",
    "reference-transaction",
    "post-checkout",
    "pre-auto-gc",
)
NAMES = (
    "../../../../etc/passwd",
    "/etc/passwd",
    "a//b",
    ".git/config",
    "a/../../b",
    "",
    ".",
    "\n",
    "x" * 5000,
    "a/./b",
)
HEADS = (
    "", "ref: refs/heads/../../../../etc/passwd\n", "ref: /etc/passwd\n", "ref: refs/heads/x\n", "ref: HEAD\n", "\x00", "0" * 40,
    "z" * 40, "0" * 64, "ref: refs/heads/" + "x/" * 2000 + "\n", "ref: refs/heads/.invalid\n", "x" * 5000, "->/dev/zero", "|", "->/etc/shadow",
)  # fmt: skip


def _object(kind: bytes, content: bytes) -> tuple[str, bytes]:
    whole = b"%s %d\0%s" % (kind, len(content), content)
    return hashlib.sha1(whole).hexdigest(), zlib.compress(whole)


def _index(
    *entries: tuple[str, int, bytes, int], version: int = 2, count: int | None = None, more: bytes = b""
) -> bytes:
    """Of (name, mode, hash, size)."""
    made = b"DIRC" + struct.pack(">2I", version, len(entries) if count is None else count)
    for name, mode, digest, size in entries:
        entry = (
            struct.pack(">10I", 1, 0, 1, 0, 1, 1, mode, 0, 0, size) + digest + struct.pack(">H", min(len(name), 4095))
        )
        entry += b"\0" + name.encode() + b"\0" if version == 4 else name.encode() + b"\0"
        made += entry if version == 4 else entry.ljust(-(-len(entry) // 8) * 8, b"\0")
    return made + more + bytes(20)


def repository(config: str = "", **files: str | bytes) -> Files:
    """One commit of `file.txt`, whose content was changed to another of the same size."""
    blob, _ = _object(b"blob", b"one\n")
    tree, tree_data = _object(b"tree", b"100644 file.txt\0" + bytes.fromhex(blob))
    commit, data = _object(b"commit", f"tree {tree}\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\none\n".encode())
    return {
        "file.txt": "two\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{commit}\n",
        ".git/config": f"[core]\n\trepositoryformatversion = 0\n{config}", ".git/index": _index(("file.txt", 0o100644, bytes.fromhex(blob), 4)),
        f".git/objects/{commit[:2]}/{commit[2:]}": data, f".git/objects/{tree[:2]}/{tree[2:]}": tree_data,
        ".git/info/attributes": "* filter=x diff=x merge=x\n", **files,
    }  # fmt: skip


def _setting(name: str, value: str = TOUCH) -> str:
    section, _, key = name.rpartition(".")
    head, _, sub = section.partition(".")
    return f'[{head}{f" {chr(34)}{sub}{chr(34)}" if sub else ""}]\n\t{key} = "{value}"\n'


def _repositories() -> Iterator[tuple[str, Files]]:
    for name in PROGRAMS:
        yield f"config {name}", repository(_setting(name, "always" if name.endswith("allow") else TOUCH))
        inside = {f"sub/{at}": content for at, content in repository(_setting(name)).items()}
        commit = str(inside["sub/.git/refs/heads/main"]).strip()
        link = {".git/index": _index(("sub", 0o160000, bytes.fromhex(commit), 0))}
        yield f"in a submodule {name}", {**repository(), **inside, **link}
    for hook in HOOKS:
        yield f"hook {hook}", repository(**{f".git/hooks/{hook}": f"#!/bin/sh\n{TOUCH}\n"})
    for n, head in enumerate(HEADS):
        yield f"HEAD {n}", repository(**{".git/HEAD": head})
        yield f"a branch {n}", repository(**{".git/refs/heads/main": head})
    for n, name in enumerate(NAMES):
        yield f"index name {n}", repository(**{".git/index": _index((name, 0o100644, bytes(20), 0))})
    whole = repository()
    index = whole[".git/index"]
    assert isinstance(index, bytes)
    bad: dict[str, str | bytes] = {
        "cut": index[:40], "counts": _index(count=2**32 - 1), "version": _index(version=9), "of version 4": _index(("a" * 4000, 0o100644, bytes(20), 0), version=4),
        "split": _index(more=b"link" + struct.pack(">I", 20) + bytes(20)), "extension": _index(more=b"TREE\xff\xff\xff\xff"), "a pipe": "|",
        "a device": "->/dev/zero", "zeros": bytes(4096), "a link": "->/etc/shadow", "long": b"DIRC" + b"\0\0\0\2\0\0\xff\xff" + bytes(2**20),
    }  # fmt: skip
    for name, content in bad.items():
        yield f"index {name}", repository(**{".git/index": content})
    commit = str(whole[".git/refs/heads/main"]).strip()
    at = f".git/objects/{commit[:2]}/{commit[2:]}"
    loose: dict[str, str | bytes] = {
        "a bomb": zlib.compress(b"commit 99999999\0" + bytes(2**26)), "no zlib": b"\x78\x9cxxxx", "empty": b"", "a pipe": "|", "another kind": _object(b"blob", b"x")[1],
        "no tree": _object(b"commit", b"author a\n")[1], "a device": "->/dev/zero",
    }  # fmt: skip
    for name, content in loose.items():
        yield f"object {name}", repository(**{at: content})
    fan = struct.pack(">256I", *[1] * 256)
    head = b"\xfftOc\0\0\0\2"
    packs: dict[str, tuple[bytes, bytes]] = {
        "itself": (head + fan + bytes.fromhex(commit) + bytes(4) + struct.pack(">I", 12) + bytes(40), b"PACK\0\0\0\2\0\0\0\1" + b"\xe0\x00" * 20),
        "far": (head + fan + bytes.fromhex(commit) + bytes(4) + b"\xff\xff\xff\xff" + bytes(40), b"PACK"),
        "a size": (head + fan + bytes.fromhex(commit) + bytes(4) + struct.pack(">I", 12) + bytes(40), b"PACK\0\0\0\2\0\0\0\1" + b"\x9f" + b"\xff" * 30),
        "many": (head + struct.pack(">256I", *[2**31] * 256), b"PACK"),
        "a base": (head + fan + bytes.fromhex(commit) + bytes(4) + struct.pack(">I", 12) + bytes(40), b"PACK\0\0\0\2\0\0\0\1" + b"\x74" + bytes.fromhex(commit) + zlib.compress(b"\4\4\x90\4")),
    }  # fmt: skip
    for name, (index_of, pack) in packs.items():
        files = repository(**{".git/objects/pack/p.idx": index_of, ".git/objects/pack/p.pack": pack})
        del files[at]
        yield f"pack {name}", files
    for name, files in {
        "gitdir elsewhere": {".git": "gitdir: /etc\n"}, "gitdir itself": {".git": "gitdir: .git\n"}, "gitdir a pipe": {".git": "|"},
        "gitdir a device": {".git": "->/dev/zero"}, "gitdir long": {".git": "gitdir: " + "x/" * 5000},
    }.items():  # fmt: skip
        yield name, dict(files)
    yield (
        "alternates in a circle",
        repository(**{".git/objects/info/alternates": "../objects\n" * 3, ".git/refs/heads/main": "1" * 40}),
    )
    yield (
        "alternates a device",
        repository(**{".git/objects/info/alternates": "/dev\n", ".git/refs/heads/main": "1" * 40}),
    )
    yield "a common folder in a circle", repository(**{".git/commondir": "../.git\n"})
    yield "a file that is a pipe", repository(**{"file.txt": "|"})
    yield "a file that is a device", repository(**{"file.txt": "->/dev/zero"})
    yield "attributes a pipe", repository(**{".git/info/attributes": "|"})
    yield "config a pipe", {**repository(), ".git/config": "|"}


# Ledgers.

TABLES = (
    "CREATE VIEW points AS WITH RECURSIVE x(key) AS (SELECT 1 UNION ALL SELECT key + 1 FROM x) SELECT {} FROM x",
    "CREATE TABLE points ({}, CHECK (randomblob(1000000000) > '')) WITHOUT ROWID",
    "CREATE TABLE points (key PRIMARY KEY, {} DEFAULT (randomblob(1000000000))) WITHOUT ROWID",
    "CREATE TABLE points (key PRIMARY KEY, {}, more AS (randomblob(1000000000))) WITHOUT ROWID",
    "CREATE TABLE points (key TEXT COLLATE NOCASE PRIMARY KEY, {}) WITHOUT ROWID",
    "CREATE TABLE points (key PRIMARY KEY, {})",
    "CREATE VIRTUAL TABLE points USING fts5({})",
)
MORE = (
    "CREATE TRIGGER t BEFORE INSERT ON points BEGIN DELETE FROM points; END",
    "CREATE TRIGGER t AFTER INSERT ON points BEGIN INSERT INTO points(key) SELECT randomblob(1000000) FROM points; END",
    "CREATE VIEW v AS SELECT load_extension('/tmp/x.so')", "CREATE INDEX i ON points(status) WHERE length(zeroblob(1000000000)) > 0",
    "CREATE INDEX i ON points(hex(randomblob(100000000)))", "CREATE TABLE other (a)", "CREATE VIRTUAL TABLE v USING fts5(a)",
    "CREATE VIRTUAL TABLE v USING rtree(a, b, c)", "CREATE TEMP TABLE x (a)", "ANALYZE", "DROP TABLE trials", "ALTER TABLE points DROP COLUMN status",
    "PRAGMA user_version=99", "PRAGMA user_version=0", "PRAGMA application_id=7", "PRAGMA encoding='UTF-16le'",
)  # fmt: skip


@cache
def ledger(*statements: str) -> bytes:
    from npucompose.experiment.sweep.run import PointEntry, PointLedger

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "sweeps.sqlite"
        with PointLedger.open(Path(place)) as made:
            made.write([PointEntry(key="a" * 64, status="ok", overrides=("seed=1",))])
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in (*statements, "PRAGMA journal_mode=DELETE"):
            try:
                connection.execute(statement).fetchall()
            except sqlite3.Error:  # what SQLite itself refuses, or was built without
                continue
        connection.close()
        return path.read_bytes()


def _with_table(text: str) -> bytes:
    from npucompose.experiment.sweep.run import PointLedger

    columns = ", ".join(PointLedger.columns()[0 if "(key" not in text else 1 :]).replace("key", "key", 1)
    if text.startswith("CREATE VIEW"):
        columns = "key, " + ", ".join(f"key AS {name}" for name in PointLedger.columns()[1:])
    return ledger("DROP TABLE points", text.format(columns), "PRAGMA user_version=1")


def journal(named: str) -> bytes:
    """A rollback journal, hot, of a transaction over several databases, that names the file in which they stand."""
    name = named.encode()
    head = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">5I", 0, 7, len(ledger()) // 4096, 512, 4096)
    end = struct.pack(">2I", len(name), sum(name)) + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    return head.ljust(512, b"\0") + struct.pack(">I", 2**20) + name + end


def _ledgers() -> Iterator[tuple[str, Files]]:
    for n, text in enumerate(TABLES):
        yield f"table {n}", {LEDGER: _with_table(text)}
    for n, text in enumerate(MORE):
        yield f"also {n}", {LEDGER: ledger(text)}
    good = ledger()
    for end in ("-journal", "-wal", "-shm", ""):
        for name, content in {
            "a pipe": "|",
            "a device": "->/dev/zero",
            "a link": "->../victim",
            "zeros": bytes(4096),
        }.items():
            yield f"{name} at {end or 'itself'}", {"victim": "mine", LEDGER: good, f"{LEDGER}{end}": content}
    for name in ("victim", "../victim", ".npucompose/victim", "/etc/hostname-of-nobody"):
        yield (
            f"a journal that names {name}",
            {"victim": "mine", ".npucompose/victim": "mine", LEDGER: good, f"{LEDGER}-journal": journal(name)},
        )
    for n, at in enumerate((16, 18, 19, 20, 24, 28, 44, 56, 60, 96, 100, 101, 103, 105, 108, 4096, 4097, 4099)):
        yield f"byte {at}", {LEDGER: good[:at] + bytes([255 - n]) + good[at + 1 :]}
    yield "a wal of another", {LEDGER: good, f"{LEDGER}-wal": b"\x37\x7f\x06\x82" + bytes(28) + bytes(4120)}


# What is executed or unpickled later, and records of the store.

KEY = "a" * 64


def _caches() -> Iterator[tuple[str, Files, tuple[str, ...]]]:
    from airflow_free.store import Record

    words = ("run", "--dry-run", "model=add", "pipeline=compile_only")
    record = Record(stage="compile", key=KEY, facts={}, seconds=1.0).text()
    contents: Files = {
        "a pipe": "|", "a device": "->/dev/zero", "a link": "->/etc/shadow", "a link to itself": f"->{KEY}.json", "deep": "[" * 100_000,
        "zeros": bytes(4096), "half": record[:40], "a number": "9" * 10_000, "NaN": record.replace("1.0", "NaN"), "no UTF-8": b"\xff",
    }  # fmt: skip
    for stage in ("compile", "capture", "benchmark"):
        for name, content in contents.items():
            yield f"a record of {stage} {name}", {f".npucompose/records/{stage}/{KEY}.json": content}, ("--records",)
    for name, content in contents.items():
        yield f"a file of a record {name}", {f".npucompose/files/compile/{KEY}/torchair/dump.txt": content}, words


# Tensors.

NPY = (
    "(0, 10**20)", "(0, 2**62, 4)", "(True,)", "(-1,)", "(1.5,)", "('a',)", "None", "()", "[1]", "(10**30,)", "(2**63,)", "(1,) * 40",
    "(4611686018427387904, 0)", "(1, 2, 'x' * 3)", "((((1,),),),)",
)  # fmt: skip
DESCRIPTIONS = ("'|O'", "'<U99999999'", "'|V0'", "'<f9'", "[('a', '<f4')] * 3", "'<M8[s]'", "''", "5")
PICKLES = (
    b"\x80\x02cbuiltins\nbytearray\n\x8a\x07\x00\x00\x00\x00\x00\x00\x04\x85R.", b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85R.",
    b"\x80\x02cos\nsystem\nX\x0e\x00\x00\x00touch executed\x85R.", b"\x80\x02r\xff\xff\xff\x7f.", b"\x80\x02J\x01\x00\x00\x00r\xff\xff\xff\x7f.",
    b"\x80\x02\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x80\x02" + b"(" * 10_000, b"\x80\x02" + b"]" * 10_000 + b"a" * 9_999 + b".", b".", b"", b"\x80\x05\x95",
    b"\x80\x02" + b"K\x01" + b"\x85" * 100_000 + b".", b"i", b"\x80\x02h\x00.", b"\x80\x02}(K\x01u.", b"\x80\x02Q.", b"\x80\x02R.",
)  # fmt: skip


def _tensor_files() -> Iterator[tuple[str, bytes]]:
    for n, shape in enumerate(NPY):
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode() + b"\n"
        yield f"npy shape {n}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    for n, kind in enumerate(DESCRIPTIONS):
        text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': (1,)}}".encode() + b"\n"
        yield f"npy kind {n}.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + bytes(4)
    for n, pickled in enumerate(PICKLES):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as inside:
            inside.writestr("x/data.pkl", pickled)
            inside.writestr("x/data/0", bytes(16))
        yield f"pt pickle {n}.pt", out.getvalue()
    yield "pt a bare pickle.pt", PICKLES[2] + b"PK\x05\x06" + bytes(18)
    yield "pt an empty zip.pt", b"PK\x05\x06" + bytes(18)
    yield "pt twice.pt", b"PK\x03\x04" * 500


# Parts of a line of a log, many times.

LONG_PARTS = {
    "bracket": "] a", "FakeTensor": "FakeTensor(", "size": "FakeTensor(size=(", "recompiles": "[0/1]", "function": "[0/1] Recompiling function ",
    "failure": "- 0/0: ", "mark": "Mark node[a,", "collect": "Collect node ", "input": "] input 1: ", "option": "] a = ", "blanks": " " * 5,
    "slot": "Input[1] of node: ", "node": "Node: ", "skip": "Skip dynamic shape partition of graph ", "verdict": "Static FX graph compiled to ",
    "symbols": "s0 ", "quotes": '"', "braces": "{", "dashes": "-", "digits": "1",
}  # fmt: skip
"""What a pattern that tries every way through a line would try again and again."""


def folders() -> Iterator[Folder]:
    for name, files in _repositories():
        yield Folder(name=f"git/{name}", files=files, command=STATE)
    for name, files in _ledgers():
        for command in (("report",), ("--ledger",)):
            yield Folder(name=f"database/{name}, {command[0].strip('-')}", files=files, command=command)
    for name, files, command in _caches():
        yield Folder(name=f"store/{name}", files=files, command=command)
    for name, content in _tensor_files():
        yield Folder(name=f"tensor/{name}", files={f"theirs/{name}": content}, command=("--tensor", f"theirs/{name}"))
