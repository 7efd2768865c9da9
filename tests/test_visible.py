"""What is shown: text made visible, guarded streams, consoles; the garbage collector kept out."""

from __future__ import annotations

import gc
import io
import sys
from typing import Any

import pytest

from airflow_free import errors
from npucompose.console import _Visible, console, guarded
from npucompose.errors import visible
from npucompose.machine import gc_paused


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31m", "\\x1b[31m"),
        ("tab\t", "tab\\t"),
        ("\x7f\r", "\\x7f\\r"),
        ("größe\n\u202e", "größe\n\\u202e"),
    ],
)
def test_text_is_made_visible(text: str, shown: str) -> None:
    """The orchestrator has its own, which needs nothing of ours."""
    assert visible(text) == errors.visible(text) == shown


class Terminal(io.StringIO):
    flushed = 0
    encoding = "utf-8"  # type: ignore[assignment]
    errors = "strict"  # type: ignore[assignment]
    buffer = "the buffer"  # type: ignore[assignment]

    def flush(self) -> None:
        self.flushed += 1

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 42


def test_a_guarded_stream_is_the_stream_but_for_what_it_writes() -> None:
    below = Terminal()
    inner = _Visible(below)
    stream: Any = _Visible(inner)  # type: ignore[arg-type]
    assert stream.rich_proxied_file is below
    assert stream.write("a\tb\x1b") == 4
    assert below.getvalue() == "a\tb\\x1b"
    stream.flush()
    assert below.flushed == 1
    assert (stream.isatty(), stream.fileno(), stream.writable()) == (True, 42, True)
    assert (stream.encoding, stream.errors, stream.buffer) == ("utf-8", "strict", "the buffer")


def test_the_guard_is_taken_down_whatever_happens() -> None:
    before = sys.stdout, sys.stderr

    @guarded()
    def act() -> None:
        assert all(isinstance(stream, _Visible) for stream in (sys.stdout, sys.stderr))
        assert sys.stdout is not sys.stderr
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        act()
    assert (sys.stdout, sys.stderr) == before


def test_a_console_obeys_its_own_styles_alone() -> None:
    made = console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    made.print("[bold]x[/] :smile: \x1b[2J", style="red", highlight=False)
    assert made.file.getvalue() == "\x1b[31m[bold]x[/] :smile: \\x1b[2J\x1b[0m\n"  # type: ignore[attr-defined]
    assert type(console()) is type(made)


def test_nothing_is_collected_inside_and_the_collector_is_as_it_was_after() -> None:
    @gc_paused()
    def act() -> None:
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("so")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="so"):
        act()
    assert gc.isenabled()
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
