"""What goes to a terminal goes through here: text that others chose moves no cursor and sets no colour.

`console()` is the one way to a rich console; `guarded()` is around a whole command and covers what is printed
otherwise, by argparse, Hydra, `warnings` and tracebacks too.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, cast

from npucompose.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


PIPED = 120
"""Columns where nobody's screen says how many there are: rich's 80 break what a page or a program is to take up."""


def console(**options: Any) -> Console:
    """A rich console that obeys its own styles and nothing that stands in a text, rich's own marks
    included. `options` are rich's. Into a pipe or a file lines have `PIPED` columns, unless COLUMNS says otherwise."""
    made = _kind()(**{"markup": False, "emoji": False, **options})
    if not options.keys() & {"width", "record", "file"} and not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPED
    return made


@cache
def _kind() -> type[Console]:
    """Made when it is first asked for: not every command loads rich."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Guarded(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

        def on_broken_pipe(self) -> None:
            """rich would end the process with 1; what a reader's leaving means is decided where the command ends."""
            self.quiet = True
            raise

    return Guarded


def asked_words(asked: Mapping[str, str]) -> str:
    """`mlp · target=cpu · mode=eager` of {group: choice}."""
    return " · ".join(choice if group in ("model", "file") else f"{group}={choice}" for group, choice in asked.items())


def head(title: str, answer: Text) -> Table:
    """The first line of an answer: what was asked, and at the right what was found."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(expand=True, padding=(0, 1))
    made.add_column(ratio=1)
    made.add_column(justify="right", no_wrap=True)
    made.add_row(Text(title, style="bold"), answer)
    return made


def labelled(rows: Iterable[Sequence[Text]], *, labels: int) -> Table:
    """Rows of so many labels, which no line breaks, and the words behind them, which go on in the next line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(labels):
        made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever is written to stdout and stderr meanwhile is made visible first."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Visible(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


MOST_PRINTED = 50
"""Lines of a model's own that are kept."""


@contextmanager
def prints_apart() -> Iterator[list[str]]:
    """What a model prints meanwhile, or a program that it starts, goes into the list and not to stdout, which others
    parse: its first lines, and how many more there were."""
    found: list[str] = []
    with tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8", errors="replace") as file:
        sys.stdout.flush()
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            with redirect_stdout(file):
                yield found
        finally:
            with suppress(OSError):
                file.flush()
            os.dup2(before, 1)
            os.close(before)
            file.seek(0)
            lines = file.read().splitlines()
            more = len(lines) - MOST_PRINTED
            found += [*lines[:MOST_PRINTED], *([f"and {more} more lines"] if more > 0 else [])]


class _Visible(io.TextIOBase):
    """A text stream in front of another. A rich console writes to that other one, with its own escape sequences."""

    def __init__(self, stream: TextIO) -> None:
        while isinstance(stream, _Visible):
            stream = stream.rich_proxied_file
        self.rich_proxied_file = stream

    def write(self, text: str, /) -> int:
        self.rich_proxied_file.write("\t".join(map(visible, text.split("\t"))))
        return len(text)

    def flush(self) -> None:
        self.rich_proxied_file.flush()

    def isatty(self) -> bool:
        return self.rich_proxied_file.isatty()

    def fileno(self) -> int:
        return self.rich_proxied_file.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.rich_proxied_file.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.rich_proxied_file.errors

    @property
    def buffer(self) -> Any:
        return self.rich_proxied_file.buffer
