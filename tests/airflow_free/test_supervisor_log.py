"""The log of a supervised job: its beginning and its end are kept, a full disk costs no job."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_free import supervisor
from airflow_free.outcome import MIB
from airflow_free.supervisor import _CappedLog
from tests.airflow_free.supervised import is_open, text

# Note [Private names]
# The log is that of a supervisor, without its process.


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    out, into = os.pipe()
    os.set_blocking(out, False)
    yield out, into
    for handle in (out, into):
        if is_open(handle):
            os.close(handle)


@pytest.fixture
def log_file(tmp_path: Path) -> int:
    return os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)


@pytest.mark.parametrize(
    ("printed", "kept", "cut"),
    [
        ([b"ab", b"cd"], b"abcd", 0),
        ([b"abcdef"], b"abcdef", 0),
        ([b"abcdefg"], b"abcdef\n[airflow_free: the log was cut here, 0 bytes are not kept]\ng", 0),
        ([b"abcdefghijklmnop"], b"abcdef\n[airflow_free: the log was cut here, 2 bytes are not kept]\nijklmnop", 2),
        (
            [b"abcd", b"efghij", b"klmnop"],
            b"abcdef\n[airflow_free: the log was cut here, 2 bytes are not kept]\nijklmnop",
            2,
        ),
    ],
)  # fmt: skip
def test_a_log_keeps_its_beginning_and_its_end(
    printed: list[bytes], kept: bytes, cut: int, tmp_path: Path, log_file: int, pipe: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(supervisor, "TAIL_BYTES", 8)
    log = _CappedLog(log_file, 6, "airflow_free")
    for chunk in printed:
        os.write(pipe[1], chunk)
        assert log.take(pipe[0])
    assert log.take(pipe[0])  # nothing there now, and it may come
    os.close(pipe[1])
    assert not log.take(pipe[0])
    log.close()
    assert (text(tmp_path), log.cut, is_open(log_file)) == (kept, cut, False)


def test_of_what_is_cut_no_more_than_the_end_is_held(
    log_file: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TAIL_BYTES", 8)
    log = _CappedLog(log_file, 0, "bakery")
    for chunk, held in ((b"12345", [b"12345"]), (b"1234567", [b"12345", b"1234567"]), (b"a", [b"1234567", b"a"]),
                        (b"12345678", [b"12345678"])):  # fmt: skip
        os.write(pipe[1], chunk)
        log.take(pipe[0])
        assert log.tail == deque(held)
    assert log.cut == 21
    os.close(log_file)


def test_all_that_is_left_in_the_pipe_is_taken_and_the_pipe_closed(
    tmp_path: Path, log_file: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "CHUNK", 4)
    os.write(pipe[1], b"0123456789")
    log = _CappedLog(log_file, 100, "bakery")
    log.take_all(pipe[0])  # somebody still holds the other end
    assert (text(tmp_path), is_open(pipe[0])) == (b"0123456789", False)


@pytest.mark.parametrize(("room", "goes_on", "asked"), [(1, True, 32), (0, True, 1), (1, False, 1)])
def test_a_pipe_that_somebody_fills_for_ever_is_left_after_two_mib(
    room: int, goes_on: bool, asked: int, log_file: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _CappedLog(log_file, 0, "bakery")
    taken: list[int] = []

    def take(handle: int) -> bool:
        taken.append(handle)
        log.cut += room
        return goes_on

    monkeypatch.setattr(log, "take", take)
    log.take_all(pipe[0])
    assert taken == [pipe[0]] * asked
    assert 32 * supervisor.CHUNK == 2 * MIB


def test_a_full_disk_costs_the_log_and_not_the_job(
    tmp_path: Path, log_file: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _CappedLog(log_file, 100, "bakery")
    written, write = [0], os.write

    def full(handle: int, data: bytes) -> int:
        if handle != log_file:
            return write(handle, data)
        if written[0] >= 4:
            raise OSError(28, "No space left on device")
        written[0] += 1
        return write(handle, data[:1])

    monkeypatch.setattr(os, "write", full)
    os.write(pipe[1], b"abcdef")
    assert log.take(pipe[0])
    assert text(tmp_path) == b"abcd"
