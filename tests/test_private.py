"""What others could have written is not believed; what is ours alone is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npucompose import private

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cache"
    private.make(root / "native" / "torch", root)
    (root / "native" / "torch" / "a.so").touch(0o600)
    return root


def doubt(root: Path) -> str:
    found = private.doubt(root / "native" / "torch" / "a.so", root)
    return found.words if found else ""


def test_folders_are_made_for_their_owner_whatever_the_umask_says(tmp_path: Path):
    before = os.umask(0)
    try:
        private.make(tmp_path / "new" / "cache" / "a" / "b", tmp_path / "new" / "cache")
    finally:
        os.umask(before)
    for folder in ("cache", "cache/a", "cache/a/b"):
        assert (tmp_path / "new" / folder).stat().st_mode & 0o777 == 0o700


def test_folders_that_were_open_are_closed(root: Path):
    (root / "native").chmod(0o777)
    private.make(root / "native" / "torch", root)
    assert (root / "native").stat().st_mode & 0o777 == 0o700
    assert doubt(root) == ""


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o720, 0o702])
@pytest.mark.parametrize("place", [".", "native", "native/torch", "native/torch/a.so"])
def test_what_others_may_write_is_not_believed_nor_what_lies_in_it(root: Path, place: str, mode: int):
    (root / place).chmod(mode)
    assert doubt(root) == f"{root / place} can be written by others (mode {mode:o})"


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o500])
def test_what_others_may_only_read_is_believed(root: Path, mode: int):
    (root / "native").chmod(mode)
    assert doubt(root) == ""


@ROOT
@pytest.mark.parametrize("place", [".", "native", "native/torch", "native/torch/a.so"])
def test_what_belongs_to_another_user_is_not_believed(root: Path, place: str):
    os.chown(root / place, 12345, 12345)
    found = private.doubt(root / "native" / "torch" / "a.so", root)
    assert found == private.AccessDoubt(f"{root / place} belongs to another user (number 12345)", mine=False)


@ROOT
def test_what_belongs_to_root_is_believed(root: Path, monkeypatch: pytest.MonkeyPatch):
    """An administrator may fill a cache for everybody."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert doubt(root) == ""


def test_a_link_on_the_way_is_not_followed(root: Path, tmp_path: Path):
    (root / "native").rename(tmp_path / "elsewhere")
    (root / "native").symlink_to(tmp_path / "elsewhere")
    assert doubt(root) == f"{root / 'native'} is a link"


def test_the_root_itself_may_be_a_link_to_another_disk(root: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(root)
    assert private.doubt(tmp_path / "link" / "native" / "torch" / "a.so", tmp_path / "link") is None
    root.chmod(0o777)
    assert private.doubt(tmp_path / "link" / "native", tmp_path / "link") is not None


def test_a_folder_of_everybody_s_above_the_root_is_doubted_and_tmp_is_not(root: Path):
    root.parent.chmod(0o777)
    assert "can be written by everybody" in doubt(root)
    root.parent.chmod(0o1777)
    assert doubt(root) == ""


def test_what_is_not_there_yet_is_no_reason_for_doubt(tmp_path: Path):
    assert private.doubt(tmp_path / "cache" / "native" / "a.so", tmp_path / "cache") is None


def test_one_file_among_many_that_others_may_write_spoils_a_folder(root: Path):
    assert private.doubt_within(root / "native", root) is None
    (root / "native" / "torch" / "a.so").chmod(0o666)
    assert private.doubt_within(root / "native", root) is not None
    private.close(root / "native")
    assert private.doubt_within(root / "native", root) is None


def test_what_is_kept_is_read_again_and_not_where_others_could_have_written_it(root: Path) -> None:
    file = root / "times" / "8.json"
    assert private.read(file, root) is None
    private.keep(file, root, "first")
    private.keep(file, root, "second")
    assert private.read(file, root) == "second"
    assert [place.name for place in file.parent.iterdir()] == ["8.json"]
    file.chmod(0o666)
    assert private.read(file, root) is None


def test_where_nothing_can_be_kept_there_is_nothing_and_no_error(root: Path) -> None:
    private.keep(root / "native" / "torch" / "a.so" / "file", root, "text")
    assert private.read(root / "native" / "torch" / "a.so" / "file", root) is None
