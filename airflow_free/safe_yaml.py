"""YAML from a stranger: plain data within limits. No tags, no endless nesting, no aliases, of which bombs are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from npucompose.errors import ConfigError

LARGEST = 16 * 2**20
"""Bytes: a recipe with 20,000 samples of three candidates has about one MiB."""
DEEPEST = 32


def load(path: Path) -> Any:
    """The data in a file; ConfigError says, with the line, why it is not read."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ConfigError(f"{path} has {size} bytes; a file of more than {LARGEST} is not read.")
        if not path.is_file():
            raise ConfigError(f"{path} is no file.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    try:
        for line, problem in _problems(text):
            raise ConfigError(f"{path}, line {line}: {problem}")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # a date or a number that YAML's own rules make and Python cannot hold
        raise ConfigError(f"{path} is not YAML: {error}.") from error


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
