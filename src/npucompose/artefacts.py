"""What reads files that something else wrote about a graph or a run: installed readers, asked one after the other.
Knows none of their forms."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType

from npucompose.errors import ConfigError
from npucompose.registry import Registry
from npucompose.results.artefacts import FileFacts

OUR_READER = "artefacts"
"""Of the package that few need: named where none is installed."""
READERS: Registry[FunctionType] = Registry(
    kind="reader of logs and dumps", base=FunctionType, group="npucompose.readers", values=True
)
"""Functions of a path whose result has a `sinking`, and may have the other attributes of FileFacts; ConfigError for a
file that is not of theirs."""


def read_artefact(path: Path | str) -> FileFacts:
    """What the file says to the first reader that knows its form."""
    problems: list[str] = []
    for name in READERS.names() or (OUR_READER,):
        try:
            return FileFacts.from_read(READERS.get(name)(path))
        except ConfigError as refused:
            problems += refused.problems
    raise ConfigError(*problems)
