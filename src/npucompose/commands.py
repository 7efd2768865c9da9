"""What an argument and a command are, the commands that installed packages bring, and how a command writes the
file that it was told to, as by `--out`. Loads nothing of what they do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from attrs import evolve, field, frozen

from npucompose.errors import ConfigError
from npucompose.registry import Registry


@frozen
class Argument:
    """As argparse takes it; `choices` may be a function, called when the command is asked for."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    one_of: bool = False
    """Such arguments of a command exclude each other."""


@frozen(kw_only=True)
class Command:
    about: str
    act: str = ""
    """The function, "module:function"; empty for what is not called by its arguments."""
    arguments: tuple[Argument, ...] = ()
    instead: Mapping[str, str] = field(factory=dict[str, str])
    """{argument: the function that acts where it is given}."""
    actions: Mapping[str, Command] = field(factory=dict[str, "Command"])
    """Commands below it, in its place."""


def argument(*names: str, **settings: Any) -> Argument:
    return Argument(names, settings)


def flag(name: str, about: str) -> Argument:
    return Argument((name,), {"action": "store_true", "help": about})


def one_of(*arguments: Argument) -> tuple[Argument, ...]:
    return tuple(evolve(one, one_of=True) for one in arguments)


AS_JSON = flag("--json", "print JSON")


INSTALLED: Registry[Command] = Registry(kind="command", base=Command, group="npucompose.commands", values=True)
"""Beside those of cli/arguments.py, which has the core's."""
EXPLANATIONS: Registry[FunctionType] = Registry(
    kind="explanation", base=FunctionType, group="npucompose.explanations", values=True
)
"""Functions of `explain`'s arguments, for what only a package knows: an engine's options beside a recipe's."""


def explain_vllm(arguments: argparse.Namespace) -> int:
    return EXPLANATIONS.get("vllm", "explain --vllm")(arguments)


def write(place: str | Path, text: str, option: str = "--out") -> None:
    """Put `text` there; missing folders are made. ConfigError, which names `option`, where the file system refuses.

    A file is written whole or not at all, the one that a link leads to included. A pipe, a terminal and /dev/null are
    written to and stay what they are.
    """
    from airflow_free.store import write_atomically  # only here: commands that only print load no store

    path = Path(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            write_atomically(path.resolve(), text)
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror}.") from None
