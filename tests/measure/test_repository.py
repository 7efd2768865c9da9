"""Commit and changes of the working folder, read from the repository's files: as git says, and without git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from npucompose.measure import environment, git_files
from npucompose.measure.environment import git_state

Git = Callable[..., str]


def git_in(folder: Path) -> Git:
    home = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "protocol.file.allow=always")
        ran = subprocess.run(
            ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True, env={**os.environ, **home}
        )
        return ran.stdout.strip()

    return git


def made(folder: Path, *settings: str, **files: str) -> Git:
    folder.mkdir(parents=True, exist_ok=True)
    git = git_in(folder)
    git("init", *settings)
    for name, content in {"file": "1\n", "a/b-c": "2\n", "a/b/c": "3\n", "a.b": "4\n", "z/y/x": "5\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "link").symlink_to("file")
    git("add", ".")
    git("commit", "-m", "one")
    return git


@pytest.fixture(autouse=True)
def settings_of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a person has set for all repositories is no part of these."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings"))


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(tmp_path) == (None, None)


@pytest.mark.parametrize("form", ["sha1", "sha256"])
@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_the_commit_and_whether_files_changed_are_what_git_says(form: str, version: str, tmp_path: Path) -> None:
    git = made(tmp_path / "r", f"--object-format={form}")
    git("config", "index.version", version)
    git("update-index", "--force-write-index")
    folder = tmp_path / "r"
    assert git_state(folder) == (git("rev-parse", "HEAD"), False)
    assert git_state(folder / "a" / "b")[0] == git("rev-parse", "HEAD")
    (folder / "file").write_text("2\n")
    assert git_state(folder)[1] is True, "the same size, in the same tick of the clock"
    git("add", "file")
    assert git_state(folder)[1] is True, "staged"
    git("commit", "-m", "two")
    assert git_state(folder) == (git("rev-parse", "HEAD"), False)
    (folder / "new").write_text("untracked\n")
    assert git_state(folder)[1] is False
    git("add", "--intent-to-add", "new")
    assert git_state(folder)[1] is True


def test_commits_in_packs_by_differences_are_found(tmp_path: Path) -> None:
    git, folder = made(tmp_path), tmp_path
    for number in range(25):
        (folder / "file").write_text(f"{number}\n")
        git("commit", "-am", f"{number} " + "words that come again and again " * 20)
    git("gc", "--aggressive", "--quiet")
    packed = git("verify-pack", "-v", *map(str, (folder / ".git").rglob("*.idx")))
    assert any(" commit " in line and len(line.split()) == 7 for line in packed.splitlines()), (
        "no commit is a difference"
    )
    tip = git("rev-parse", "HEAD")
    for commit in (tip, f"{tip}~7", f"{tip}~24"):
        git("checkout", "--force", commit)
        assert git_state(folder) == (git("rev-parse", "HEAD"), False)


def test_other_work_trees_shared_clones_and_copies(tmp_path: Path) -> None:
    git = made(tmp_path / "r")
    commit = git("rev-parse", "HEAD")
    git("worktree", "add", "../other")
    git("clone", "--shared", ".", "../clone")
    shutil.copytree(tmp_path / "r", tmp_path / "copy", symlinks=True)
    for name in ("other", "clone", "copy"):
        assert git_state(tmp_path / name) == (commit, False), name
        (tmp_path / name / "z" / "y" / "x").write_text("another\n")
        assert git_state(tmp_path / name) == (commit, True), name


@pytest.mark.parametrize("change", ["removed", "executable", "link", "folder", "conflict"])
def test_every_kind_of_change_is_seen(change: str, tmp_path: Path) -> None:
    git, file = made(tmp_path), tmp_path / "file"
    if change == "executable":
        file.chmod(0o755)
        git("config", "core.fileMode", "false")
        assert git_state(tmp_path)[1] is False
        git("config", "core.fileMode", "true")
    elif change == "conflict":
        git("checkout", "-b", "side")
        file.write_text("side\n")
        git("commit", "-am", "side")
        git("checkout", "-")
        file.write_text("main\n")
        git("commit", "-am", "main")
        with pytest.raises(subprocess.CalledProcessError):
            git("merge", "side")
    else:
        file.unlink()
        if change == "link":
            file.symlink_to("1\n")
        if change == "folder":
            file.mkdir()
    assert git_state(tmp_path)[1] is True


def test_a_submodule_at_another_commit_is_a_change(tmp_path: Path) -> None:
    made(tmp_path / "inner")
    git, inner = made(tmp_path / "r"), tmp_path / "r" / "sub"
    git("submodule", "add", "../inner", "sub")
    git("commit", "-m", "with a submodule")
    assert git_state(tmp_path / "r")[1] is False
    git_in(inner)("commit", "--allow-empty", "-m", "further")
    assert git_state(tmp_path / "r")[1] is True


def test_what_only_a_filter_could_show_is_not_known(tmp_path: Path) -> None:
    folder, ran = tmp_path / "r", tmp_path / "executed"
    git = made(folder, **{".gitattributes": "* text=auto\n"})
    os.utime(folder / "file", (1, 1))
    assert git_state(folder)[1] is False, "another time, the same content"
    (folder / "file").write_text("7\n")
    assert git_state(folder)[1] is True, "line ends do not explain it"
    (folder / ".git" / "info" / "attributes").write_text("* filter=theirs diff=theirs\n")
    for name in ("core.fsmonitor", "filter.theirs.clean", "filter.theirs.process", "diff.external", "core.pager"):
        git("config", name, f"touch '{ran}'; cat")
    assert (git_state(folder)[1], ran.exists()) == (None, False)
    (folder / "file").write_text("of another size\n")
    assert (git_state(folder)[1], ran.exists()) == (True, False)
    subprocess.run(["git", "status"], cwd=folder, check=False, capture_output=True)
    assert ran.exists(), "the folder names programs, and git runs them"


def test_a_repository_of_another_user_is_reported_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(environment, "foreign_owner", lambda place: 7)
    monkeypatch.setattr(git_files, "head", lambda own: pytest.fail("it is read"))
    warned = list[str]()
    # private: a warning goes nowhere else
    monkeypatch.setattr(environment._log, "warning", lambda words, *parts: warned.append(words % parts))
    assert git_state(tmp_path) == (None, None)
    assert warned == [f"{tmp_path} belongs to another user (number 7): its commit is not read."]


def test_a_comparison_that_takes_too_long_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = made(tmp_path)
    monkeypatch.setattr(environment, "BUDGET_S", -1.0)
    assert git_state(tmp_path) == (git("rev-parse", "HEAD"), None)


@pytest.mark.parametrize("file", ["HEAD", "index", "refs/heads/main", "objects"])
@pytest.mark.parametrize("content", [None, b"", b"\x00", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"ref: refs/../../x", "|"])
def test_files_of_a_repository_that_are_none_say_nothing(
    content: bytes | str | None, file: str, tmp_path: Path
) -> None:
    made(tmp_path, "--initial-branch=main")
    place = tmp_path / ".git" / file
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if isinstance(content, bytes):
        place.write_bytes(content)
    elif content is not None:
        os.mkfifo(place)
    commit, changed = git_state(tmp_path)
    assert changed is None
    assert (commit is None) == (file in ("HEAD", "refs/heads/main"))
