"""Cases of logs and graph dumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npucompose_devtools.artefacts import logs, read
from tests.refusals.case import Case


def artefact(content: bytes | str, limit: int = 10_000) -> Callable[[Path], Any]:
    def of(folder: Path) -> Any:
        (folder / "dump.txt").write_bytes(content.encode() if isinstance(content, str) else content)
        return read(folder / "dump.txt", limit=limit)

    return of


AT = "npucompose_devtools.artefacts"
TEXT, DUMPS, LISTINGS, LOGS, PROTO = (f"{AT}.{name}" for name in ("text", "dumps", "dumps", "logs", "text"))
NODE = 'op { type: "NetOutput" } '
LOG = "[INFO] TORCHAIR(1,python):x [c.cpp:246]1 Static FX graph compiled to static Ascend GE graph, graph id: 0\n"
HALF = "[INFO] TORCHAIR(1,python):x [c.cpp:246]1 Static FX graph compiled to sta"
DEEP_PY = f"a_0 = ge.Data(index={'-' * 2000}1)\na_1 = ge.NetOutput(a_0)\n"
DEEP_JSON = f"""ir_version: 1
graph {{ node {{ op_type: "ge:Data" attribute {{ name: "output_desc_0" s: "{"[" * 5000}" }} }} }}
"""


def many(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "MOST_LINES", 3)
        return artefact(LOG * 4)(folder)


CASES = (
    Case(AT, "is no artefact", artefact("import os\n"), "is no artefact that is read here. It begins with 'import os'"),
    Case(AT, "nests too deep", artefact(DEEP_PY), "nests too deep to be read", "RecursionError"),
    Case(AT, "nests too deep", artefact(DEEP_PY.replace("-", "-" * 3)), "nests too deep to be read", "MemoryError"),
    Case(AT, "nests too deep", artefact(DEEP_JSON), "nests too deep to be read", "RecursionError"),
    Case(TEXT, "read from files", lambda folder: read("/dev/null"), "/dev/null is no file; logs", "UnusableFile"),
    Case(AT, "of a dump at most", artefact("import os\n", limit=5), "of a dump at most 5 are read"),
    Case(LOGS, "about graphs", many, "dump.txt has more than 3 lines about graphs"),
    Case(
        TEXT,
        "cannot be read",
        lambda folder: read(folder / "none"),
        "cannot be read: No such file",
        "FileNotFoundError",
    ),
    Case(TEXT, "is empty", artefact(b" \n"), "dump.txt is empty", "is no artefact"),
    Case(TEXT, "is binary", artefact(NODE.encode() + b"#\0"), "is binary"),
    Case(TEXT, "is no UTF-8", artefact(b"caf\xe9"), "is no UTF-8 text: byte 3 is 0xe9", "UnicodeDecodeError"),
    Case(
        DUMPS,
        "looks like a graph dump",
        artefact(NODE + "op { output_desc { shape { dim: two } } }"),
        "looks like a graph dump, but is none",
        "ValueError",
    ),
    Case(DUMPS, "it has no NetOutput", artefact('op { type: "Data" }'), "is cut off: it has no NetOutput"),
    Case(
        LISTINGS,
        "is no whole statement",
        artefact("a_0 = ge.Data(index=0, sha"),
        "is cut off: line 1 is no whole statement",
        "SyntaxError",
    ),
    Case(
        LISTINGS, "it has no ge.NetOutput", artefact("a_0 = ge.Data(index=0)\n"), "is cut off: it has no ge.NetOutput"
    ),
    Case(
        LISTINGS,
        "has no return",
        artefact('graph("g"):\n  %x : [#users=1] = Node[type=Data] (attrs'),
        'graph("g") has no return',
    ),
    Case(LOGS, "ends inside", artefact(LOG + HALF), "ends inside 'FX graph compiled to static"),
    Case(
        PROTO,
        "has no end",
        artefact(NODE + 'op { name: "x'),
        "a text that begins in line 1 has no end",
        "AttributeError",
    ),
    Case(PROTO, "parsed :: blocks are open", artefact(NODE + "op { "), "1 blocks are open at its end"),
    Case(PROTO, "parsed :: raise NotProtobuf", artefact(NODE + "7"), "is no artefact that is read here"),
    Case(PROTO, "_signed :: raise NotProtobuf", artefact(NODE + "}"), "is no artefact that is read here", "TypeError"),
)
