"""A reader that has enough (`… | head`) ends a command quietly: no traceback, and the status that a shell gives."""

from __future__ import annotations

import io
import subprocess
import time
from pathlib import Path

import pytest
from nursery import command

from airflow_free.progress import Progress
from airflow_free.stage import Event
from npucompose.cli.statuses import PIPE_CLOSED
from npucompose.console import console


class Closed(io.StringIO):
    def write(self, text: str, /) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_console_whose_reader_left_does_not_end_the_process_by_itself() -> None:
    with pytest.raises(BrokenPipeError):
        console(file=Closed()).print("much")


def test_progress_that_nobody_reads_any_more_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(console(file=Closed()), silent_s=0.01) as progress:
        progress.show(Event(kind="progress", text="tracing"))
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "lines"), [("explain model=add", 1), ("run model=add pipeline=check", 2), ("run model=add mode=eager", 1)]
)
def test_head_ends_a_command_as_it_ends_others(words: str, lines: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("npucompose", *words.split()), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(120) in (0, PIPE_CLOSED)
        assert process.stderr.read() == ""
