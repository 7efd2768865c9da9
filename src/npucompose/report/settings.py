"""Who set this? Every value of an experiment with where it came from, for a terminal or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs
from rich.console import Console
from rich.text import Text

from npucompose.errors import ConfigError, unknown
from npucompose.report.differences import written
from npucompose.report.words import as_count
from npucompose.schema.setting import COMMAND_LINE, DEFAULT, Setting

COMPILER = "compiler."
DEFAULT_FILES = (DEFAULT, "conf/compiler/default.yaml")
"""Who says what nobody chose, of the compiler's options."""


def below(settings: Sequence[Setting], path: str) -> tuple[Setting, ...]:
    """Those at or below a dotted path; ConfigError where there is none."""
    found = tuple(one for one in settings if one.option == path or one.option.startswith(f"{path}."))
    if not found:
        parts = dict.fromkeys(one.option.split(".")[0] for one in settings)
        raise ConfigError(unknown("option", path, (*parts, *(one.option for one in settings)), "--under"))
    return found


def render(settings: Sequence[Setting], console: Console, *, under: str = "") -> None:
    """Values by who said them, the command line first, what nobody chose last.

        command line
          passes.cse.stage=post
        conf/mode/eager.yaml, chosen on the command line
          mode.name=eager

    Without `under` the compiler's untouched options are counted and not listed.
    """
    shown = below(settings, under) if under else tuple(one for one in settings if not _untouched(one))
    for said_by in sorted(dict.fromkeys(one.said_by for one in shown), key=_rank):
        console.print(Text(said_by, style="bold"), soft_wrap=True)
        for one in shown:
            if one.said_by == said_by:
                console.print(Text(f"  {one.option}={written(one.value)}"), soft_wrap=True)
                if one.why_not is not None:
                    console.print(Text(f"    does not act: {one.why_not}", style="yellow"), soft_wrap=True)
    left = len(settings) - len(shown)
    if left and not under:
        words = f"{as_count(left, 'option')} of the compiler at their default: --under compiler lists them"
        console.print(Text(words, style="dim"), soft_wrap=True)


def _rank(said_by: str) -> int:
    if said_by == COMMAND_LINE:
        return 0
    return 1 if COMMAND_LINE in said_by else 3 if said_by == DEFAULT else 2


def _untouched(one: Setting) -> bool:
    return one.option.startswith(COMPILER) and one.said_by.startswith(DEFAULT_FILES) and one.why_not is None


def as_json(settings: Sequence[Setting], *, under: str = "") -> str:
    """Every value, or those below `under`."""
    shown = below(settings, under) if under else settings
    return json.dumps([attrs.asdict(one) for one in shown], indent=2, ensure_ascii=False)
