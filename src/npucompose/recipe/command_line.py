"""What starts an engine, a command line or a script in which one stands, as data; installed readers know how."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.recipe.vendor_options import Unread
from npucompose.registry import Registry

READERS: Registry[FunctionType] = Registry(
    kind="reader of command lines", base=FunctionType, group="npucompose.command_lines", values=True
)
"""Functions of (text, name) whose result is a CommandLine; ConfigError for a text that is none."""


@frozen(kw_only=True)
class CommandLine:
    """`vllm serve M -cc.mode=3` is `data={"model_tag": "M", "compilation_config": {"mode": 3}}`."""

    data: dict[str, Any]
    """{option: its value; of one that is given by parts, a mapping}, in Python's spelling."""
    notes: tuple[str, ...] = ()
    """What of the text is read elsewhere."""
    unread: tuple[Unread, ...] = ()
    """What of it is not known, or says more than a recipe can."""


def read_command_line(text: str, name: str) -> CommandLine:
    """By the first reader that is installed; ConfigError says why not, and nothing of the text is run."""
    readers = list(READERS.every().values())
    if not readers:
        raise ConfigError(f"{name}: no reader of command lines is installed.")
    return readers[0](text, name)
