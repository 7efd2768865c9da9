"""One row of the table: a rule, an input that only this rule refuses, and the words of the refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from npucompose.errors import NpuComposeError
from tests.refusals.limits import TooMuch, limited
from tests.refusals.rules import Rule, rules_of

ACCEPTED = ""


class Unread(Exception):
    """What a reader refused of a file and reported, instead of raising."""


@frozen
class Case:
    module: str
    rule: str
    """A part of the rule's text that no other rule of the module has; `function :: part` where several have it."""
    read: Callable[[Path], Any]
    """Reads the hostile input; it may write it into the folder first."""
    said: str
    """Of the refusal, so much that no other rule's refusal says it."""
    otherwise: str = ACCEPTED
    """What comes of the input without the rule: nothing, or the beginning of another refusal, or of an exception's
    name and text: the rule then keeps a crash from the person."""

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}-{self.rule[:48]}"

    def found(self) -> list[Rule]:
        where, _, part = self.rule.rpartition(" :: ")
        return [
            rule
            for rule in rules_of(self.module)
            if part in rule.text and (not where or ".".join(rule.within).endswith(where))
        ]

    def outcome(self, folder: Path) -> str:
        """What the reader said: nothing where it took the input."""
        folder.mkdir()
        try:
            with limited():
                self.read(folder)
        except (NpuComposeError, Unread) as refused:
            return str(refused)
        except (Exception, TooMuch) as error:  # noqa: BLE001  what the rule kept away
            return f"{type(error).__name__}: {error}"
        return ACCEPTED
