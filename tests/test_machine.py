"""What limits a process's time on the cores that it sees."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from npucompose import machine
from npucompose.machine import THREAD_VARIABLES, Attendance, cpu_quota, full_collections_put_off, thread_settings


def groups(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "100000 100000", "a/b/cpu.max": "800000 100000"}, 1.0),
        ("0::/../../of/the/host", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.0),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("5:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_tightest_limit_of_a_control_group_counts(
    own: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    file = tmp_path / "own"
    file.write_text(own + "\n")
    assert cpu_quota(groups(tmp_path / "groups", files), file) == quota


def test_attendance_is_the_share_of_the_time_with_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 1_400)
    monkeypatch.setattr(time, "process_time_ns", lambda: 250)
    assert Attendance(wall_ns=1_000, own_ns=50).share() == 0.5
    assert Attendance(wall_ns=1_400, own_ns=250).share() == 0.0


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "none") is None


def test_only_settings_of_threads_that_are_set_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert thread_settings() == {"MKL_NUM_THREADS": "3"}


def test_full_collections_are_put_off_inside_and_as_before_after() -> None:
    @full_collections_put_off()
    def act() -> None:
        with full_collections_put_off():
            pass
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1_000_000
        raise ValueError("so")

    before = gc.get_threshold()
    with pytest.raises(ValueError, match="so"):
        act()
    assert gc.get_threshold() == before


def test_of_two_threads_the_last_one_out_allows_full_collections_again() -> None:
    before, inside, leave, left = gc.get_threshold(), threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        with full_collections_put_off():
            inside.set()
            leave.wait(60)
        left.set()

    thread = threading.Thread(target=other)
    with full_collections_put_off():
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold()[2] > 1_000_000
    leave.set()
    thread.join(60)
    assert left.is_set()
    assert gc.get_threshold() == before


def test_threads_come_in_and_leave_one_after_the_other() -> None:
    # private: a thread has to stand inside of it
    lock, inside, left = machine._full_collections._lock, threading.Event(), threading.Event()

    def other() -> None:
        with full_collections_put_off():
            inside.set()
            assert held.wait(60)
        left.set()

    held, thread = threading.Event(), threading.Thread(target=other)
    with lock:
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(60)
    with lock:
        held.set()
        assert not left.wait(0.1)
    thread.join(60)
    assert left.is_set()
