"""A file as text, or one sentence that says why not. Knows no form."""

from __future__ import annotations

from pathlib import Path

from npucompose.errors import ConfigError

LIMIT_BYTES = 64 << 20
"""A larger file is a dump with its weights or the log of a whole day: its beginning would answer nothing."""


def text_of(path: Path, limit: int) -> str:
    """The file's text; ConfigError when it cannot be read, is empty, binary, or has more than `limit` bytes."""
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/zero would never end
            raise ConfigError(f"{path} is no file.")
        size = path.stat().st_size
        if size > limit:
            raise ConfigError(
                f"{path} has {size} bytes; at most {limit} are read. Cut the log to the run in question (grep its "
                "process id), or dump the graph without weights: DUMP_GE_GRAPH=2."
            )
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not data.strip():
        raise ConfigError(f"{path} is empty.")
    if b"\0" in data:
        raise ConfigError(
            f"{path} is binary. A serialised graph (.pb, .om, .air) is not read: dump it as text "
            "(debug.graph_dump.type=pbtxt, DUMP_GE_GRAPH=2)."
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.") from error


def cut_off(name: str, why: str) -> ConfigError:
    """`dump.txt is cut off: …`, with the way out."""
    return ConfigError(f"{name} is cut off: {why}. Write it again, or copy all of it.")
