"""Jobs that write garbage, fork, hide, stop, flood and kill: one job that ends badly each, and nothing that stays."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from hostile_jobs import HARM

from airflow_free import outcome, processes
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import MIB, Limits, Outcome
from airflow_free.pool import Pool
from airflow_free.processes import Process
from airflow_free.stage import Event

LONG, SHORT = 60.0, 1.5
ENDS: dict[str, tuple[str, str]] = {
    "garbage_everywhere": ("crashed", "where it answers airflow_free, and was ended"),
    "a_word_without_end": ("crashed", "bytes in one line where it answers airflow_free"),
    "deep_json": ("crashed", "wrote b'[[[["),
    "a_huge_number": ("crashed", "where it answers airflow_free"),
    "a_result_of_its_own": ("crashed", "where it answers airflow_free"),
    "a_flood_of_events": ("timeout", "its time limit of 1.5 s"),
    "closed_pipes": ("crashed", "closed the pipe through which it answers airflow_free"),
    "a_child_in_a_session_of_its_own": ("done", ""),
    "a_daemon": ("crashed", "died of SIGKILL"),
    "a_stopped_daemon": ("crashed", "died of SIGSEGV"),
    "a_fork_bomb": ("crashed", "died of SIGABRT"),
    "a_comet": ("crashed", "ended with exit status 9"),
    "stops_itself": ("timeout", "its time limit of 1.5 s"),
    "stops_its_supervisor": ("crashed", "closed the pipe through which it answers airflow_free"),
    "kills_its_supervisor": ("crashed", "the process that watches the worker was killed"),
    "gigabytes_of_log": ("crashed", "ended with exit status 4"),
    "memory_without_end": ("memory_limit", "its limit is 200"),
    "escapes_in_an_exception": ("failed", r"ValueError: \x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b31m over"),
    "its_folders_away": ("done", ""),
}
WAITS = {"a_flood_of_events", "stops_itself"}
"""Those for which somebody waits are run together, in one test."""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr("airflow_free.pool.GRACE_S", 0.3)
    monkeypatch.setattr("airflow_free.pool.LINGER_S", 1.0)
    monkeypatch.setattr(outcome, "LONGEST_LINE", 4 * MIB)
    with Pool(tmp_path / "forkserver.log") as pool:
        yield pool


def order(folder: Path, number: int, act: str) -> WorkerTask:
    place = folder / act
    place.mkdir()
    return WorkerTask(
        number=number,
        entry="hostile_jobs:act",
        payload={"act": act, "folder": str(place)},
        time_limit_s=SHORT if act in WAITS else LONG,
        log_path=place / "run.log",
        limits=Limits(log_bytes=MIB, memory_bytes=200 * MIB),
        environment={**os.environ, "HARM_S": "0.3"},
    )


def ends(pool: Pool) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    while pool.running:
        for number, news in pool.events(LONG):
            if isinstance(news, Outcome):
                found[number] = news
            else:
                assert "\x1b" not in news.text
    return found


def left_of(place: Path) -> list[int]:
    """Processes that the job noted down and that still live."""
    if not (place / "harm.pids").exists():
        return []
    pids = [int(line) for line in (place / "harm.pids").read_text().split()]
    return [pid for pid in pids if (process := Process.from_pid(pid)) is not None and not process.is_zombie]


def none_left(place: Path) -> bool:
    """A fork server takes a moment for what a killed supervisor left."""
    deadline = time.monotonic() + 5
    while left_of(place) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left_of(place)


def test_every_harm_has_an_end_that_is_expected() -> None:
    assert {act.__name__ for act in HARM} == set(ENDS)


class WorkersFirst(selectors.DefaultSelector):
    """Of what is ready at once, what a worker says comes before what its supervisor does."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        time.sleep(1.0)
        jobs = [ready for ready in super().select(0) if isinstance(ready[0].data, tuple)]
        others = [ready for ready in found if not isinstance(ready[0].data, tuple)]
        return [*others, *sorted(jobs, key=lambda ready: ready[0].data[1] != ready[0].data[0].channel.pipe)]


def test_a_pipe_that_was_seen_to_close_before_the_job_was_seen_to_begin_is_not_waited_for(
    pool: Pool, tmp_path: Path
) -> None:
    pool.selector = WorkersFirst()
    pool.start(order(tmp_path, 0, "closed_pipes"))
    pool.events(LONG)  # its server is ready
    began = time.monotonic()
    assert ENDS["closed_pipes"][1] in (ends(pool)[0].error or "")
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("act", sorted(set(ENDS) - WAITS))
def test_a_job_that_does_harm_ends_alone(act: str, pool: Pool, tmp_path: Path) -> None:
    pool.start(order(tmp_path, 0, act))
    status, words = ENDS[act]
    found = ends(pool)[0]
    assert (found.status, words in (found.error or "")) == (status, True), found
    assert none_left(tmp_path / act)
    assert "".join((found.error or "", *found.last_lines)).isprintable()


def test_jobs_that_hold_somebody_up_end_at_their_time_and_hold_up_nobody_else(pool: Pool, tmp_path: Path) -> None:
    names = sorted(WAITS)
    for number, act in enumerate(names):
        pool.start(order(tmp_path, number, act))
    pool.start(order(tmp_path, 99, "a_child_in_a_session_of_its_own"))
    found = ends(pool)
    assert found[99].status == "done"
    for number, act in enumerate(names):
        assert (found[number].status, ENDS[act][1] in (found[number].error or "")) == (ENDS[act][0], True), act
    assert all(none_left(tmp_path / act) for act in names)


def test_a_log_is_cut_at_its_limit_and_keeps_its_end(pool: Pool, tmp_path: Path) -> None:
    pool.start(order(tmp_path, 0, "gigabytes_of_log"))
    found = ends(pool)[0]
    text = (tmp_path / "gigabytes_of_log" / "run.log").read_bytes()
    assert len(text) < MIB + 20_000
    assert found.log_cut_bytes > MIB
    assert f"[airflow_free: the log was cut here, {found.log_cut_bytes} bytes are not kept]".encode() in text
    assert text.endswith(b"the last line\n")
    assert found.last_lines[-1] == "the last line"


def test_without_control_groups_all_of_them_end_too(pool: Pool, tmp_path: Path) -> None:
    for number, act in enumerate(("a_fork_bomb", "a_comet", "a_daemon", "kills_its_supervisor")):
        pool.start(evolve(order(tmp_path, number, act), loaded=("no_control_groups",)))
    assert {found.status for found in ends(pool).values()} == {"crashed"}
    assert all(none_left(tmp_path / act) for act in ("a_fork_bomb", "a_daemon", "kills_its_supervisor"))


def test_a_fork_server_that_is_stopped_is_replaced(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_free.pool.START_S", 0.3)
    pool.start(order(tmp_path, 0, "a_child_in_a_session_of_its_own"))
    assert ends(pool)[0].status == "done"
    (server,) = pool.servers.values()
    os.kill(server.process.pid, signal.SIGSTOP)
    pool.start(order(tmp_path, 1, "a_daemon"))
    assert ends(pool)[1].status == "crashed"
    assert none_left(tmp_path / "a_daemon")


def test_what_a_job_started_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "a_child_and_more"
    place.mkdir()
    parent = os.fork()
    if parent == 0:
        with contextlib.suppress(BaseException), Pool(tmp_path / "forkserver.log") as pool:
            pool.start(
                WorkerTask(
                    number=0,
                    entry="hostile_jobs:act",
                    payload={"act": "stays_with_a_child", "folder": str(place)},
                    time_limit_s=LONG,
                    log_path=place / "run.log",
                )
            )
            while True:
                pool.events()
        os._exit(1)
    deadline = time.monotonic() + 30
    while not left_of(place) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left_of(place)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert none_left(place)


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"{}\n", b"null\n", b"[]\n", b"1\n", b'"word"\n', b'{"word": "event"}\n', b"\xff\n", b'{"word": 1}\n',
        b'{"word": "event", "event": {}}\n', b'{"word": "event", "event": {"kind": "note", "text": 1}}\n',
        b'{"word": "event", "event": {"kind": "no"}}\n', b'{"word": "result", "result": []}\n',
        b'{"word": "event", "event": {"kind": "progress", "fraction": 1e999}}\n',
        b'{"word": "result", "result": {"a": NaN}}\n', b'{"word": "error", "message": "m"}\n',
        b'{"word": "event", "event": {"kind": "note", "more": 1}}\n', b"[" * 100_000 + b"\n",
    ],
    ids=lambda line: line[:60],
)  # fmt: skip
def test_any_bytes_that_are_no_word_break_the_channel_and_raise_nothing(line: bytes) -> None:
    read_end, write_end = os.pipe()
    channel = outcome.WorkerChannel(read_end, "airflow_free")
    with open(write_end, "wb", buffering=0) as pipe:
        heard: list[Event] = []
        pipe.write(b'{"word": "event", "event": {"kind": "note", "text": "a\\u001bb"}}\n')
        pipe.write(line[:60_000])
        channel.read(heard.append)
        if len(line) > 60_000:
            pipe.write(line[60_000:])
            channel.read(heard.append)
    channel.close()
    assert channel.broken is not None
    assert channel.broken.isprintable()
    assert [event.text for event in heard] == [r"a\x1bb"]
    assert channel.final is None


def test_a_word_that_comes_in_pieces_is_heard(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    channel = outcome.WorkerChannel(read_end, "airflow_free")
    for piece in (b'{"word": "res', b'ult", "resu', b'lt": {"a": 1}}\n'):
        os.write(write_end, piece)
        channel.read(lambda event: None)
    os.close(write_end)
    channel.read(lambda event: None)
    assert (channel.final, channel.ended, channel.broken) == (outcome.FinalMessage(result={"a": 1}), True, None)
    channel.close()


def test_a_control_group_kills_what_is_in_it(tmp_path: Path) -> None:
    folder = processes.make_group("bakery")
    if folder is None:
        pytest.skip("no control groups of version 2 that this process may make")
    pid = os.fork()
    if pid == 0:
        processes.enter_group(folder)
        os.setsid()
        time.sleep(3600)
    while str(pid) not in (Path(folder) / processes.GROUP_MEMBERS).read_text().split():
        time.sleep(0.01)
    processes.kill_group(folder)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    processes.remove_group(folder)
    assert not Path(folder).exists()
