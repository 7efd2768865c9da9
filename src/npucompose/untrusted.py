"""Files that may be a stranger's: text within a limit, YAML as plain data. No tags, no endless nesting, no aliases, of
which bombs are made.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError
from npucompose.plain_yaml import Limits, plain_data

MOST_BYTES = 16 * 2**20
"""Of YAML: a recipe with 20,000 samples of three candidates has about one MiB."""
RECIPE = Limits(most_values=500_000, deepest=32, aliases=False)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """What is in a file; ConfigError says why it is not read. Nothing is read of what is too large or no file."""
    try:
        if not path.exists():
            raise FileNotFoundError
        if not path.is_file():  # a pipe or /dev/zero would never end
            raise ConfigError(f"{path} is no file.")
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigError(f"{path} has {size:,} bytes; a file of more than {most_bytes:,} is not read.")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)  # it may be longer than it says, or grow meanwhile
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    if len(data) > most_bytes:
        raise ConfigError(f"{path} is longer than {most_bytes:,} bytes and is not read.")
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error}.") from error


def load_yaml(path: Path) -> Any:
    """The data in a file; ConfigError says, with the line, why it is not read."""
    return plain_yaml(read_text(path), str(path))


def plain_yaml(text: str, name: str) -> Any:
    """The data in a text that is called `name` where it is refused."""
    return plain_data(text, name, RECIPE)
