"""Cases of what a device's software wrote: captured graphs, profiles and their tables, dumps of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npucompose_devtools.artefacts import read
from npucompose_devtools.device_files import captured_graphs, msprobe, profiles, tensor_dumps, tensors
from tests.refusals.case import Case, Unread

Reading = Callable[[Path], Any]
AT = "npucompose_devtools.device_files"
GRAPHS, PROFILES, MSPROBE, FOLDERS, TENSORS = (
    f"{AT}.{name}" for name in ("captured_graphs", "profiles", "msprobe", "tensor_dumps", "tensors")
)
ARTEFACTS = "npucompose_devtools.artefacts"


def lowered(module: Any, limit: str, value: int, reading: Reading) -> Reading:
    """The same with a limit that a small file exceeds."""

    def of(folder: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, limit, value)
            return reading(folder)

    return of


# Captured graphs.

TASK = '{"name": "Add_1", "args": {"Stream Id": 1, "Task Id": 0, "Task Type": "KERNEL_AIVEC"}}'


def graph(text: str) -> Reading:
    return lambda folder: captured_graphs.read(text, "g.json")


GRAPH_CASES = (
    Case(GRAPHS, "is no whole JSON", graph(f"[{TASK},"), "g.json is no whole JSON", "JSONDecodeError"),
    Case(
        GRAPHS,
        "holds no list",
        lowered(captured_graphs, "MOST_TASKS", 1, graph(f"[{TASK}, {TASK}]")),
        "g.json holds no list of at most 1 tasks",
    ),
    Case(
        GRAPHS,
        "holds no task:",
        graph('[{"name": "flow", "args": {}}, {"x": "\\"Task Type\\""}, {"y": {"Task Type": 1}, "z": "Task Type"}]'),
        "g.json holds no task",
        "IndexError",
    ),
    Case(
        GRAPHS,
        "holds a task without",
        graph(f'[{TASK}, {{"name": "x", "args": {{"Task Type": "NOP", "Task Id": 1}}}}]'),
        "g.json holds a task without a name, a stream or a task number",
        "KeyError",
    ),
)

# Profiles.

HEAD = "Name,Type,Accelerator Core,Duration(us),Input Shapes,Output Shapes\n"
ROW = 'aclnnAbs_Abs,Abs,AI_VECTOR_CORE,5.5,"""64,64""","""64,64"""\n'


def profile(text: str) -> Reading:
    def of(folder: Path) -> Any:
        found = profiles.read(text, "p.csv")
        assert found is not None
        assert found.times is not None
        if found.times.left_out:
            raise Unread(str(dict(found.times.left_out)))
        return found

    return of


PROFILE_CASES = (
    Case(
        PROFILES, "lacks the columns", profile("Name,Type,Accelerator Core,Duration(us)\n"), "p.csv lacks the columns"
    ),
    Case(PROFILES, "it is cut off", profile(HEAD + "aclnnAbs_Abs,Abs,AI_VEC"), "p.csv:2 has 3 fields", "IndexError"),
    Case(
        PROFILES,
        "profile fewer steps",
        lowered(profiles, "MOST_ROWS", 1, profile(HEAD + ROW * 2)),
        "p.csv has more than 1 kernels",
    ),
    Case(
        PROFILES,
        "is no row of a table",
        lowered(profiles, "LONGEST_FIELD", 30, profile(HEAD + "a" * 40)),
        "p.csv:2 is no row of a table",
        "Error: field larger",
    ),
    Case(
        PROFILES,
        "not on the AI cores",
        profile(HEAD + ROW.replace("AI_VECTOR_CORE", "HCCL")),
        "HCCL: not on the AI cores",
    ),
    Case(PROFILES, "no number as its time", profile(HEAD + ROW.replace("5.5", "soon")), "no number as its time"),
    Case(PROFILES, "no time of a kernel", profile(HEAD + ROW.replace("5.5", "-1")), "no time of a kernel"),
    Case(PROFILES, "no shapes", profile(HEAD + ROW.replace("64,64", "N/A")), "no shapes"),
    Case(PROFILES, "no operator type", profile(HEAD + ROW.replace("aclnnAbs_Abs,Abs", "N/A,N/A")), "no operator type"),
)


# Dumps.

DUMP = {"data": {"Torch.abs.0.forward": {"input_args": [], "output": [{"type": "torch.Tensor", "shape": [2]}]}}}


def dump(text: str) -> Reading:
    def of(folder: Path) -> Any:
        (folder / "dump.json").write_text(text)
        return msprobe.read(folder)

    return of


def folder_of(*names: str) -> Reading:
    def of(folder: Path) -> Any:
        for name in names:
            (folder / name).write_bytes(b"")
        return tensor_dumps.read(folder)

    return of


FOLDER_CASES = (
    Case(ARTEFACTS, "is no dump that is read here", lambda folder: read(folder), "is no dump that is read here"),
    Case(MSPROBE, "has no 'data'", dump('{"task": "tensor"}'), "has no 'data'", "TypeError"),
    Case(
        MSPROBE,
        "dump one step",
        lowered(msprobe, "MOST_OPERATORS", 0, dump(json.dumps(DUMP))),
        "has more than 0 operators",
    ),
    Case(MSPROBE, "has no operator with a tensor", dump('{"data": {}}'), "has no operator with a tensor"),
    Case(MSPROBE, "is no whole JSON", dump("{"), "is no whole JSON (JSONDecodeError)", "JSONDecodeError"),
    Case(MSPROBE, "holds no names", dump("[]"), "holds no names", "AttributeError"),
    Case(
        FOLDERS,
        "give the folder of one step",
        lowered(tensor_dumps, "MOST_FILES", 1, folder_of("a.npy", "b.npy")),
        "has more than 1 files",
    ),
)

# Tensors.


def file(name: str, write: Callable[[Path], Any]) -> Reading:
    def of(folder: Path) -> Any:
        write(folder / name)
        return tensors.load(folder / name)

    return of


def npy(content: bytes) -> Reading:
    return file("x.npy", lambda path: path.write_bytes(content))


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


TENSOR_CASES = (
    Case(
        TENSORS,
        "there is no such file",
        lambda folder: tensors.load(folder / "x.npy"),
        "there is no such file",
        "FileNotFoundError",
    ),
    Case(
        TENSORS,
        "{path} {error}",
        lowered(tensors, "MOST_BYTES", 100, file("x.npy", lambda path: np.save(path, np.zeros(4)))),
        "x.npy has 160 bytes; a file of more than 100 is not read",
        "UnusableFile: has 160 bytes",
    ),
    Case(
        TENSORS,
        "cannot be read",
        lambda folder: tensors.load(folder / ("x" * 300 + ".npy")),
        "cannot be read: File name too long",
        "OSError",
    ),
    Case(TENSORS, "is no .npy file", npy(b"RIFF" * 4), "is no .npy file (ValueError)", "ValueError"),
    Case(
        TENSORS,
        "and no numbers",
        file("x.npy", lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True)),
        "holds object and no numbers",
        "it is cut off",
    ),
    Case(
        TENSORS,
        "it is cut off",
        npy(header("(10000000,)") + b"\0" * 8),
        "says 40,000,000 bytes",
        "ValueError",
    ),
    Case(
        TENSORS,
        "a shape that no tensor has",
        npy(header("(-2, -3)") + b"\0" * 24),
        "says a shape that no tensor has: (-2, -3)",
        "ValueError",
    ),
    Case(
        TENSORS,
        "which torch has not",
        file("x.npy", lambda path: np.save(path, np.zeros(2, "f16"))),
        "holds float128, which torch has not",
        "TypeError",
    ),
)  # fmt: skip

CASES = (*GRAPH_CASES, *PROFILE_CASES, *FOLDER_CASES, *TENSOR_CASES)
