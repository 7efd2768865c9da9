"""Files that a command was told to write, as by `--out`."""

from __future__ import annotations

from pathlib import Path

from airflow_free.store import write_atomically
from npucompose.errors import ConfigError


def write(place: str | Path, text: str, option: str = "--out") -> None:
    """Put `text` there; missing folders are made. ConfigError, which names `option`, where the file system refuses.

    A file is written whole or not at all, the one that a link leads to included. A pipe, a terminal and /dev/null are
    written to and stay what they are.
    """
    path = Path(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            write_atomically(path.resolve(), text)
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror}.") from None
