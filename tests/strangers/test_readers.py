"""Whoever reads what a stranger may have written opens it by `airflow_free.foreign_files`: a regular file, bounded."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from airflow_free import foreign_files
from airflow_free.foreign_files import UnusableFile, open_regular, read_bytes
from tests.refusals.table import NO_STRANGERS
from tools.layout import product

DIRECT = re.compile(
    r"\.read_text\(|\.read_bytes\(|(?<![\w.])(?<!def )open\(|\.open\(\"r|\bsqlite3\.connect\(|\bnp\.load\("
    r"|torch\.load\("
)
"""Ways to open a file that ask nothing of it first."""
OWN = {
    "airflow_free.foreign_files": "the helper itself",
    "airflow_free.sqlite_files": "the helper of databases, which asks before it opens",
    "airflow_free.executors": NO_STRANGERS["airflow_free.executors"],
    "npucompose_devtools.device_kit.kit_files.observe": NO_STRANGERS[
        "npucompose_devtools.device_kit.kit_files.observe"
    ],
    "npucompose.models.inputs": "torch's weights-only reader, within the memory limit of the job",
    "npucompose.cli.new": NO_STRANGERS["npucompose.cli.new"],
    "npucompose.vendor.converter_conditions": NO_STRANGERS["npucompose.vendor.converter_conditions"],
}


def direct_readers() -> set[str]:
    found = set[str]()
    for package, top in product().items():
        for file in top.rglob("*.py"):
            if "simulator" not in file.parts and DIRECT.search(file.read_text(encoding="utf-8")):
                parts = file.relative_to(top).with_suffix("").parts
                found.add(".".join([package, *parts]).removesuffix(".__init__"))
    return found


def test_every_module_that_opens_files_by_itself_is_named_with_a_reason() -> None:
    assert sorted(direct_readers() - set(NO_STRANGERS) - set(OWN)) == []


def test_the_search_finds_a_reader_that_asks_nothing(tmp_path: Path) -> None:
    """Negative control."""
    for line in ("x = path.read_text()", "with open(path) as f:", "sqlite3.connect(path)", "torch.load(path)"):
        assert DIRECT.search(line), line
    for line in ("read_text(path, MOST)", "open_regular(path, 1)", "read_bytes(path, 3)", "importlib.import_module(x)"):
        assert not DIRECT.search(line), line


@pytest.mark.parametrize("kind", ["pipe", "socketless folder", "device", "link", "link to itself", "large"])
def test_what_is_no_regular_file_of_its_own_is_not_opened(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socketless folder":
        place.mkdir()
    elif kind == "device":
        place = Path("/dev/zero")
    elif kind == "large":
        place.write_bytes(b"12345")
    else:
        (tmp_path / "mine").write_text("mine")
        place.symlink_to("mine" if kind == "link" else "x")
    with pytest.raises(UnusableFile):
        read_bytes(place, 4)


def test_a_link_that_a_person_typed_is_followed_to_a_file_and_to_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert read_bytes(tmp_path / "link", 10, named=True) == b"mine"
    with pytest.raises(UnusableFile, match="is no file"):
        read_bytes(tmp_path / "zero", 10, named=True)


def test_a_refused_file_is_closed_again(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(UnusableFile):
            open_regular(tmp_path, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_owner_of_a_file_is_asked_as_git_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    assert foreign_files.foreign_owner(tmp_path) is None
    assert foreign_files.foreign_owner(tmp_path / "nothing") is None
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert foreign_files.foreign_owner(tmp_path) == (None if me == 0 else me)


def promises() -> tuple[list[tuple[str, str]], str]:
    """(the rows of the table: promise, what holds it), and all that is promised."""
    text = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.partition("## What is promised")[2].partition("## What is not promised")[0]
    return re.findall(r"^\| (.+) \| (`(?:tests|packages)/.+`) \|$", promised, re.MULTILINE), promised


def test_every_promise_names_files_that_hold_tests() -> None:
    root = Path(__file__).resolve().parents[2]
    rows, promised = promises()
    assert len(rows) == promised.count("\n| ") - 1, "each row of the table but its head"
    for test in re.findall(r"`((?:tests|packages)/[^`]+)`", promised):
        assert (root / test).is_file(), test
        assert "def test_" in (root / test).read_text(encoding="utf-8"), test
