"""/proc and /sys/fs/cgroup as made folders: who is below whom, what is used, which group may be made."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_free import processes
from airflow_free.processes import Process, below, everybody


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    return tmp_path / "proc"


def lives(
    proc: Path, pid: int, parent: int, *, group: int = 7, session: int = 8, state: str = "S", **files: str
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a) b) {state} {parent} {group} {session} 0 -1 4194304 1 2 3")
    for name, text in files.items():
        (folder / name).write_text(text)


def test_a_process_is_read_whatever_its_name_holds(proc: Path) -> None:
    lives(proc, 5, 4)
    assert Process.from_pid(5) == Process(pid=5, parent=4, group=7, session=8, is_zombie=False)
    assert Process.from_pid(6) is None


@pytest.mark.parametrize(("state", "zombie"), [("Z", True), ("X", True), ("R", False), ("D", False)])
def test_who_is_dead_is_a_zombie(state: str, zombie: bool, proc: Path) -> None:
    lives(proc, 5, 4, state=state)
    found = Process.from_pid(5)
    assert found is not None
    assert found.is_zombie is zombie


def test_children_and_theirs_are_below_a_process_and_nobody_else(proc: Path) -> None:
    assert list(everybody()) == []
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)):
        lives(proc, pid, parent)
    (proc / "meminfo").write_text("no process")
    (proc / "99").mkdir()  # it ended between the two looks
    assert {process.pid for process in everybody()} == {1, 10, 11, 12, 13, 20, 21}
    assert sorted(process.pid for process in below(10)) == [11, 12, 13]
    assert below(12) == []


def test_memory_is_what_belongs_to_no_file_and_a_share_of_what_is_shared(proc: Path) -> None:
    status = "Name:\tx\nVmRSS:\t99 kB\nRssAnon:\t  10 kB\nRssFile:\t 50 kB\nRssShmem:\t  2 kB\n"
    rollup = "Rss: 99 kB\nPss: 50 kB\nPss_Anon:  4 kB\nPss_File: 9 kB\nPss_Shmem: 1 kB\n"
    lives(proc, 5, 4, status=status, smaps_rollup=rollup)
    found = Process.from_pid(5)
    assert found is not None
    assert (found.memory(), found.share()) == (12 * 1024, 5 * 1024)
    (proc / "5" / "status").unlink()
    assert found.memory() == 0


@pytest.mark.parametrize("error", [None, ProcessLookupError, PermissionError])
def test_a_process_is_killed_with_its_group_where_it_has_one_of_its_own(
    error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []

    def kills(name: str) -> Any:
        def kill(*arguments: Any) -> None:
            killed.append((name, *arguments))
            if error:
                raise error

        return kill

    monkeypatch.setattr(os, "kill", kills("kill"))
    monkeypatch.setattr(os, "killpg", kills("killpg"))

    def one(group: int) -> Process:
        return Process(pid=5, parent=1, group=group, session=9, is_zombie=False)

    one(2).kill(with_group=True)
    one(2).kill(with_group=False)
    one(1).kill(with_group=True)
    one(0).kill(with_group=True)
    alone = ("kill", 5, signal.SIGKILL)
    assert killed == [alone, ("killpg", 2, signal.SIGKILL), alone, alone, alone]


# Control groups.

MOUNTS = "proc /proc proc rw 0 0\ncgroup {place}/old cgroup rw 0 0\ncgroup2 {place}/new cgroup2 rw 0 0\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with control groups of version 2; this process is in `user/me`."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:cpu:/elsewhere\n0::/user/me\n")
    (tmp_path / "self" / "mounts").write_text(MOUNTS.format(place=str(tmp_path).replace(" ", r"\040")))
    own = tmp_path / "new" / "user" / "me"
    own.mkdir(parents=True)
    (own / processes.GROUP_MEMBERS).write_text("")

    def path(*parts: Any) -> Path:
        (text, *_) = map(str, parts)
        return Path(text.replace("/proc/self", str(tmp_path / "self"), 1) if text.startswith("/proc/self") else text)

    monkeypatch.setattr(processes, "Path", path)
    return tmp_path


def test_the_own_group_is_the_one_of_version_2_where_it_may_be_written(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = machine / "new" / "user" / "me"
    asked: list[Any] = []
    monkeypatch.setattr(os, "access", lambda *what: asked.append(what) or True)
    assert processes._own_group() == own
    assert asked == [(own / "cgroup.procs", os.W_OK)]
    monkeypatch.setattr(os, "access", lambda *what: False)
    assert processes._own_group() is None


@pytest.mark.parametrize("missing", ["cgroup", "mounts"])
def test_without_version_2_there_is_no_own_group(missing: str, machine: Path) -> None:
    (machine / "self" / missing).write_text("1:cpu:/elsewhere\n" if missing == "cgroup" else "proc /proc proc rw 0 0\n")
    assert processes._own_group() is None
    assert processes.make_group("bakery") is None


def test_a_group_is_made_below_the_own_one_with_a_name_of_its_own(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = machine / "new" / "user" / "me"
    mkdir = Path.mkdir

    def made(self: Path, *arguments: Any, **named: Any) -> None:
        mkdir(self, *arguments, **named)
        (self / processes.GROUP_KILL).write_text("")

    monkeypatch.setattr(Path, "mkdir", made)
    one, other = processes.make_group("bakery"), processes.make_group("bakery")
    assert one is not None
    assert other not in (None, one)
    assert Path(one).parent == own
    assert Path(one).name.startswith(f"bakery-{os.getpid()}-")


def test_a_kernel_that_cannot_kill_a_group_gets_none_and_keeps_none(machine: Path) -> None:
    assert processes.make_group("bakery") is None
    assert [place.name for place in (machine / "new" / "user" / "me").iterdir()] == [processes.GROUP_MEMBERS]


def test_where_no_group_may_be_made_there_is_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Path, *arguments: Any, **named: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "mkdir", refuses)
    assert processes.make_group("bakery") is None


def test_to_enter_and_to_kill_are_words_in_its_files(tmp_path: Path) -> None:
    processes.enter_group(str(tmp_path))
    processes.kill_group(str(tmp_path))
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    processes.enter_group(str(tmp_path / "gone"))
    processes.kill_group(str(tmp_path / "gone"))


class Time:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += 0.5


def test_a_group_is_removed_with_those_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(processes, "time", time)
    (tmp_path / "group" / "inner" / "innermost").mkdir(parents=True)
    processes.remove_group(str(tmp_path / "group"))
    assert (os.listdir(tmp_path), time.slept) == ([], [])


def test_a_group_that_is_still_used_is_tried_again_for_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(processes, "time", time)
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "member").write_text("")
    processes.remove_group(str(tmp_path / "group"))
    assert time.slept == [0.01] * 4
