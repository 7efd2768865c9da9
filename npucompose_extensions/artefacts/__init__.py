"""Logs and graph dumps that TorchAir, GE and torch wrote, read as facts. Pure text: nothing is imported or run."""

from __future__ import annotations

from pathlib import Path

from npucompose.errors import ConfigError
from npucompose_extensions.artefacts import dumps, logs
from npucompose_extensions.artefacts.artefact import FORMS, Artefact, GraphRead, Mark
from npucompose_extensions.artefacts.text import LIMIT_BYTES, text_of

__all__ = ["FORMS", "Artefact", "GraphRead", "Mark", "read"]

READERS = (dumps.read_listing, dumps.read_dump, logs.read)
"""Each returns None for a text that is not of its forms, and raises ConfigError for one that is and is cut off."""


def read(path: Path | str, *, limit: int = LIMIT_BYTES) -> Artefact:
    """What the file says, its form recognised by its content.

    ConfigError for a file that is not there, is binary, is larger than `limit` bytes, is cut off, or is none of FORMS.
    """
    path = Path(path)
    text = text_of(path, limit)
    try:
        for reader in READERS:
            found = reader(text, path.name)
            if found is not None:
                return found
    except (RecursionError, MemoryError):  # the latter: deeper than Python's parser goes
        raise ConfigError(f"{path} nests too deep to be read.") from None
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    forms = "; ".join(FORMS.values())
    raise ConfigError(f"{path} is no artefact that is read here. It begins with {first[:80]!r}. What is read: {forms}.")
