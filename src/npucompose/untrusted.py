"""Files that may be a stranger's: text within a limit, YAML as plain data. No tags, no endless nesting, no aliases, of
which bombs are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from npucompose.errors import ConfigError

MOST_BYTES = 16 * 2**20
"""Of YAML: a recipe with 20,000 samples of three candidates has about one MiB."""
DEEPEST = 32


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """What is in a file; ConfigError says why it is not read. Nothing is read of what is too large or no file."""
    try:
        if not path.exists():
            raise FileNotFoundError
        if not path.is_file():  # a pipe or /dev/zero would never end
            raise ConfigError(f"{path} is no file.")
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigError(f"{path} has {size} bytes; a file of more than {most_bytes} is not read.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def load_yaml(path: Path) -> Any:
    """The data in a file; ConfigError says, with the line, why it is not read."""
    return plain_yaml(read_text(path), str(path))


def plain_yaml(text: str, name: str) -> Any:
    """The data in a text that is called `name` where it is refused."""
    try:
        for line, problem in _problems(text):
            raise ConfigError(f"{name}, line {line}: {problem}")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # a date or a number that YAML's own rules make and Python cannot hold
        raise ConfigError(f"{name} is not YAML: {error}.") from error


def visible(text: str) -> str:
    """Without what a terminal would obey: `\\x1b` for an escape character; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _problems(text: str) -> Iterator[tuple[int, str]]:
    """(line, sentence) of what is not plain data, found before any value is made."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield line, "anchors and aliases are not read."
        if tag := getattr(event, "tag", None):
            yield line, f"the tag {tag} is not read: plain values only."
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            yield line, f"nested more than {DEEPEST} deep."
