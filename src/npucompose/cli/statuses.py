"""What a command ends with: its exit status, and an error as one paragraph on stderr. Knows no command."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from npucompose.errors import ConfigError, NpuComposeError, path_error

PREFIX = "npucompose: "
INTERRUPTED, PIPE_CLOSED = 130, 141
"""What a shell reports for a command ended by Ctrl-C, and for one whose reader (`… | head`) has enough."""


def status_of(act: Callable[[], int], *, debug: bool) -> int:
    """What the command line ends with; every error is reported, and none is a traceback that nobody asked for."""
    try:
        status = _flushed(act)
    except KeyboardInterrupt:
        print(f"{PREFIX}interrupted; finished stages are kept, the same command goes on after them.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would flush into it at its end
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001
        status = _report(error, debug=debug)
        _let_go_of_what_cannot_be_written()
    return status


def _let_go_of_what_cannot_be_written() -> None:
    """What a full disk did not take Python would write again at its end, and fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_all_letters() -> None:
    """A terminal that has not all letters shows the others as `\\u2500`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed(act: Callable[[], int]) -> int:
    """All that was printed is written here, where it is known what a reader's leaving means; help ends by itself."""
    try:
        status = act()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


def _report(error: Exception, *, debug: bool) -> int:
    """The error on stderr: each problem on a line of its own; a traceback only where it was asked for."""
    if debug:
        traceback.print_exception(error)
    known = error if isinstance(error, NpuComposeError) else _translated(error)
    problems = known.problems if isinstance(known, ConfigError) else (str(known),)
    with suppress(OSError):  # where nothing can be written, the status says it
        for problem in problems:
            print(PREFIX + problem, file=sys.stderr)
    return known.exit_status


def _translated(error: Exception) -> NpuComposeError:
    """What was not foreseen: exit status 3, and never a bare traceback. The orchestrator's own errors (they carry an
    exit status) say it already."""
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)[:200]}: " if isinstance(error.filename, (str, bytes)) else ""
        return path_error(error) or NpuComposeError(f"{place}{error.strerror or error}.")
    if isinstance(error, MemoryError):
        return NpuComposeError("there is not enough memory for it.")
    status, problems = getattr(error, "exit_status", None), getattr(error, "problems", (str(error),))
    if status is None:
        where = "(--debug shows where)"
        return NpuComposeError(f"internal error, please report it: {type(error).__name__}: {error} {where}")
    return ConfigError(*problems) if status == ConfigError.exit_status else NpuComposeError(str(error))
