from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from npucompose.measure.environment import environment, git_state, versions
from npucompose.measure.memory import peak_rss_bytes
from npucompose.schema.facts import facts_of


def test_the_environment_names_no_machine_and_no_place() -> None:
    facts = environment({"cpu": "a model"})
    text = json.dumps(facts_of(facts))
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert str(Path.cwd()) not in text
    assert sys.prefix not in text
    assert facts.versions["python"] == platform.python_version()
    assert facts.device == {"cpu": "a model"}
    assert facts.cpu["usable"] >= 1
    assert facts.torch_build["cpu_capability"]


def test_thread_variables_are_kept_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment().threads["OMP_NUM_THREADS"] == "3"


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert "no-such-package" not in versions(("torch", "no-such-package"))


def test_versions_are_read_without_torch() -> None:
    code = "import sys, npucompose.measure.environment as e; e.versions(); e.cpu(); sys.exit('torch' in sys.modules)"
    environment_ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment_, check=False).returncode == 0


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(tmp_path) == (None, None)


def test_the_commit_of_the_folder_is_recorded(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    commit, dirty = git_state(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == (commit, True)


def test_the_peak_of_a_small_process_is_not_that_of_its_parent() -> None:
    ballast = bytearray(200 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    code = "from npucompose.measure.memory import peak_rss_bytes; print(peak_rss_bytes())"
    environment_ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], env=environment_, check=True, capture_output=True, text=True)
    assert 1 << 20 < int(child.stdout) < peak_rss_bytes() - (100 << 20)


def test_a_folder_of_a_stranger_names_no_program_for_git(tmp_path: Path) -> None:
    """core.fsmonitor and the filters of .gitattributes are programs that `git status` runs."""
    folder, ran = tmp_path / "theirs", tmp_path / "executed"
    folder.mkdir()
    (folder / "file.txt").write_text("one\n")

    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    assert git_state(folder)[1] is False
    (folder / ".git" / "info" / "attributes").write_text("* filter=theirs diff=theirs\n")
    for name in ("core.fsmonitor", "filter.theirs.clean", "filter.theirs.smudge", "diff.external", "core.pager"):
        git("config", name, f"touch '{ran}'; cat")
    (folder / "file.txt").write_text("another\n")
    commit, dirty = git_state(folder)
    assert (commit is not None, dirty, ran.exists()) == (True, True, False)
    subprocess.run(["git", "status"], cwd=folder, check=False, capture_output=True)
    assert ran.exists()  # what they name is run by the command that was asked before
