"""argparse, with its mistakes told as all others are: one sentence with what is possible, and exit status 2."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from npucompose.errors import ConfigError, unknown


class ArgumentParser(argparse.ArgumentParser):
    """`npucompose list modez` is `unknown kind 'modez'. Did you mean 'modes'? Choices: …`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.rstrip('.')}. `{self.prog} --help` shows what is possible.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest).lower()
            raise ConfigError(unknown(kind, str(value), [str(choice) for choice in action.choices]))
