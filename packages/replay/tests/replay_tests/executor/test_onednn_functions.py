"""Where oneDNN's functions lie in torch's library, as the compiler's own tool lists them."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
import torch

from npucompose_replay.executor import build, onednn_functions

LISTED = {name: 0x1000 + 16 * number for number, name in enumerate(onednn_functions.FUNCTIONS)}


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the PATH; `nm` goes there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_nm(folder: Path, listed: dict[str, int], name: str = "nm", status: int = 0) -> None:
    symbols = "".join(f"echo '{place:016x} t {symbol}'\n" for symbol, place in listed.items())
    noise = "echo '0000000000000001 T main'\necho\necho '                 U malloc'\n"
    program = folder / name
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "--defined-only library" ] || exit 3\n{noise}{symbols}exit {status}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def table(text: str) -> dict[str, int]:
    lines = [line.strip(" \\") for line in text.splitlines() if line.startswith("  X(")]
    pairs = (line.removeprefix("X(").removesuffix(")").split(", ") for line in lines)
    return {name: int(distance) for name, distance in pairs}


@pytest.mark.parametrize("name", ["nm", "llvm-nm"])
def test_distances_are_counted_from_a_function_that_torch_exports(lists: Path, name: str) -> None:
    put_nm(lists, LISTED | {onednn_functions.ANCHOR: 0x2000}, name)
    text = onednn_functions.header(Path("library"))
    assert table(text) == {symbol: place - 0x2000 for symbol, place in LISTED.items()}
    assert text.startswith("#pragma once\n#define NPUCOMPOSE_ONEDNN(X) \\\n  X(dnnl_version, -4096) \\\n")
    assert not text.rstrip().endswith("\\")


def test_nothing_is_called_where_one_of_them_is_not_listed_or_nobody_lists(lists: Path) -> None:
    nothing = "#pragma once\n"
    assert onednn_functions.header(Path("library")) == nothing, "there is no such tool"
    whole = LISTED | {onednn_functions.ANCHOR: 0x2000}
    for missing in ("dnnl_primitive_execute", onednn_functions.ANCHOR):
        put_nm(lists, {symbol: place for symbol, place in whole.items() if symbol != missing})
        assert onednn_functions.header(Path("library")) == nothing
    put_nm(lists, whole, status=1)
    assert onednn_functions.header(Path("library")) == nothing
    (lists / "nm").write_text("#!/no/such/interpreter\n")
    assert onednn_functions.header(Path("library")) == nothing


def test_a_tool_that_does_not_end_lists_nothing(lists: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_functions, "TIME_LIMIT_S", 0.1)
    (lists / "nm").write_text("#!/bin/sh\nwhile :; do :; done\n")
    (lists / "nm").chmod(0o700)
    assert onednn_functions.header(Path("library")) == "#pragma once\n"


@pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nothing lists the symbols of torch's library")
def test_the_torch_that_is_installed_has_them_all() -> None:
    found = table(onednn_functions.header(build._library()))
    assert set(found) == set(onednn_functions.FUNCTIONS)
    assert len(set(found.values())) == len(found)


def test_an_extension_belongs_to_one_file_of_torch(tmp_path: Path) -> None:
    """Of the same size and time, its head alone tells them apart: distances of another would be jumped to."""
    names = []
    for content in (b"a" * (build.HEAD + 5), b"b" + b"a" * (build.HEAD + 4)):
        library = tmp_path / "libtorch_cpu.so"
        library.write_bytes(content)
        names.append(build._place_name(library))
    assert names[0] != names[1]
