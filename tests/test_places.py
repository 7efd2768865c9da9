"""The machine and the folders that are its user's alone."""

from __future__ import annotations

import os
import platform
import stat
import sys
from pathlib import Path

import pytest

from npucompose import machine, private


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name\t: Intel(R) Xeon(R) \nmodel name : other\n", "Intel(R) Xeon(R)"),
        ("Hardware : A board\n", "A board"),
        ("cpu model : MIPS\n", "MIPS"),
        ("CPU implementer\t: 0x48\nCPU part\t: 0xd01\nCPU implementer : 0x49\n", "Arm 0x48 0xd01"),
        ("nothing\n", None),
        (None, None),
    ],
)
def test_the_name_of_the_processor(text: str | None, name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert machine.cpu_model(file) == (name or platform.processor() or platform.machine())


def test_the_cores_are_those_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3} if pid == 0 else set(), raising=False)
    assert machine.cores() == {1, 3}
    assert machine.usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert machine.cores() == {0, 1, 2}
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == {0}


def test_what_is_not_installed_has_no_version() -> None:
    assert machine.installed_version("attrs") == __import__("importlib.metadata").metadata.version("attrs")
    assert machine.installed_version("no-such-package") is None


def groups(tmp_path: Path, own: str, **files: str) -> float | None:
    for path, text in files.items():
        file = tmp_path / "cgroup" / path.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    return machine.cpu_quota(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a/b\n", {"a__b__cpu_DOT_max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a__b__cpu_DOT_max": "max 100000\n", "a__cpu_DOT_max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"cpu_DOT_max": "300000 100000", "a__cpu_DOT_max": "400000 100000"}, 3.0),
        ("0::/../a\n", {"a__cpu_DOT_max": "200000 100000"}, 2.0),
        ("0::/a\n", {"a__cpu_DOT_max": "200000 0"}, None),
        ("0::/a\n", {"a__cpu_DOT_max": "200000"}, None),
        ("3:cpu,cpuacct:/a\n", {"cpu__a__cpu.cfs_quota_us": "50000", "cpu__a__cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpuset:/a\n", {"cpu__a__cpu.cfs_quota_us": "50000", "cpu__a__cpu.cfs_period_us": "100000"}, None),
        ("3:cpu:/a\n", {"cpu__a__cpu.cfs_quota_us": "-1", "cpu__a__cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_share_of_the_cores(own: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert groups(tmp_path, own, **files) == quota


def test_the_cache_lies_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NPUCOMPOSE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for system, place in (("linux", ".cache/npucompose"), ("darwin", "Library/Caches/npucompose")):
        monkeypatch.setattr(sys, "platform", system)
        assert machine.cache_dir() == tmp_path / place
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.cache_dir() == tmp_path / "AppData" / "Local" / "npucompose" / "Cache"
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert machine.cache_dir() == Path("/local/npucompose/Cache")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert machine.cache_dir() == Path("/xdg/npucompose")
    monkeypatch.setenv("NPUCOMPOSE_CACHE", "~/mine")
    assert machine.cache_dir() == tmp_path / "mine"


def test_the_compiler_is_the_one_asked_for_else_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert machine.compilers() == ("g++", "c++", "clang++")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}" if name in ("c++", "clang++") else None)
    assert machine.compiler() == "/bin/c++"
    monkeypatch.setenv("CXX", "clang++")
    assert machine.compilers() == ("clang++", "g++", "c++")
    assert machine.compiler() == "/bin/clang++"
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.compiler() is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "a" / "root"
    private.make(place / "b" / "c", place)
    return place


def test_folders_are_made_on_the_whole_way_and_closed(root: Path) -> None:
    for place in (root, root / "b", root / "b" / "c"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for place in (root, root / "b", root / "b" / "c"):
        place.chmod(0o755)
    private.make(root / "b" / "c", root)
    assert {stat.S_IMODE(place.stat().st_mode) for place in (root, root / "b", root / "b" / "c")} == {0o700}
    private.make(root, root)


def test_doubt_names_the_place_and_whether_it_can_be_closed(root: Path) -> None:
    file = root / "b" / "c" / "file"
    file.write_text("x")
    file.chmod(0o600)
    assert private.doubt(file, root) is None
    assert private.doubt_within(root, root) is None
    file.chmod(0o620)
    found = private.doubt(file, root)
    assert found == private.AccessDoubt(f"{file} can be written by others (mode 620)", mine=True)
    assert private.doubt_within(root, root) == found
    assert private.doubt(root / "b", root) is None
    private.close(root)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (root / "b").chmod(0o702)
    assert private.doubt_within(root / "b" / "c", root) == private.AccessDoubt(
        f"{root / 'b'} can be written by others (mode 702)", mine=True
    )
    private.close(root / "b")
    (root / "link").symlink_to(root / "b")
    assert private.doubt(root / "link" / "c", root) == private.AccessDoubt(f"{root / 'link'} is a link", mine=True)
    private.close(root)
    assert (root / "link").is_symlink()
    (root / "link").unlink()
    root.parent.chmod(0o777)
    assert private.doubt(file, root) == private.AccessDoubt(
        f"{root.parent} can be written by everybody (mode 777)", mine=False
    )
    root.parent.chmod(0o1777)
    assert private.doubt(file, root) is None
    root.parent.chmod(0o775)
    assert private.doubt(file, root) is None
    assert private.doubt(root / "nobody" / "there", root) is None


def test_what_is_anothers_is_not_ours_to_close(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found = private.doubt(root / "b", root)
    if root.stat().st_uid == 0:  # root's is everybody's
        assert found is None
    else:
        assert found == private.AccessDoubt(f"{root} belongs to another user (number {root.stat().st_uid})", mine=False)
