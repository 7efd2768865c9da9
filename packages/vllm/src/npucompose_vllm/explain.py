"""`npucompose explain --vllm RECIPE`: one page of what was asked of vLLM and of the recipe, what acts, and why not.

serve.yaml in vLLM 0.32.0, as installed here
  asked of vLLM              asked      acts               why not
  backend                    eager      npucompose         the recipe's compiler takes the pieces
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.console import console
from npucompose.errors import ConfigError
from npucompose.input_safety import plain_yaml
from npucompose.table.structure import facts_of
from npucompose.vendor.option_specs import shown
from npucompose_vllm.installed import installed
from npucompose_vllm.recipe import path_of, read
from npucompose_vllm.requested import MOST_TOKENS, NO_MEANING, OptionOutcome, Requested, requested, said

NOBODY = "-"
WIDTH = 48
"""Of a value on the page; `--json` has it whole."""


def act(arguments: argparse.Namespace) -> int:
    """0 whatever acts; ConfigError where the recipe or the configuration cannot be read."""
    if arguments.overrides:
        raise ConfigError(f"explain --vllm takes one recipe: '{arguments.overrides[0]}' is one argument too many.")
    most = arguments.max_num_batched_tokens or MOST_TOKENS
    if most < 1:
        raise ConfigError(f"--max-num-batched-tokens {most}: must be at least 1.")
    compilation = _configuration(arguments.compilation_config)
    recipe = read(path_of("--vllm", arguments.vllm, "a recipe"))
    requested(recipe, compilation, most)  # refuses by itself before vLLM is asked
    found = requested(recipe, compilation, most, installed(recipe.path, compilation, most))
    if arguments.json:
        print(json.dumps(facts_of(found), indent=2, ensure_ascii=False))
    else:
        render(found, said(recipe), console())
    return 0


def _configuration(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    found = plain_yaml(text, "--compilation-config")  # JSON is YAML
    if not isinstance(found, dict):
        raise ConfigError(f"--compilation-config {text[:100]}: must be a JSON object, as in '{{\"mode\": 3}}'.")
    return found


def render(found: Requested, said: frozenset[str], console: Console) -> None:
    """Print it; of the recipe's options those in `said` and those that do not act as asked."""
    how = "as installed here" if found.source == "installed" else "as its sources say; it is not installed here"
    console.print(Text(f"{Path(found.recipe).name} in vLLM {found.vllm}, {how}", style="bold"))
    if found.refusal:
        console.print(Text(f"  the recipe does not act: {found.refusal}", style="bold red"))
    body = Table.grid(padding=(0, 2, 0, 0))
    for whole in (True, False, False, False):
        body.add_column(no_wrap=whole, overflow="fold")
    if found.engine:
        body.add_row(*_head("asked of vLLM"))
        for one in found.engine:
            body.add_row(*_row(one, NOBODY))
        body.add_row()
    body.add_row(*_head("asked of the recipe"))
    for one in _shown(found.own, said):
        body.add_row(*_row(one, _value(None)))
    console.print(body)
    for line in _unread(found.own):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _head(what: str) -> list[Text]:
    return [Text(word, style="bold") for word in (f"  {what}", "asked", "acts", "why not as asked")]


def _row(one: OptionOutcome, nothing: str) -> list[Text]:
    acts = Text("no" if one.acts is None and one.why else _value(one.acts), style="yellow" if one.why else "")
    asked = nothing if one.asked is None else _value(one.asked)
    return [Text(f"  {one.option}"), Text(asked), acts, Text(one.why or "", style="dim")]


def _value(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _shown(own: Iterable[OptionOutcome], said: frozenset[str]) -> Iterator[OptionOutcome]:
    unread = {*NO_MEANING, "compiler"}
    for one in own:
        if one.option in said and one.option.partition(".")[0] not in unread and one.option not in unread:
            yield one


def _unread(own: Iterable[OptionOutcome]) -> Iterator[str]:
    """One line for each reason why an engine does not read sections of an experiment."""
    sections: dict[str, dict[str, None]] = {}
    for name in (one.option.partition(".")[0] for one in own):
        if why := NO_MEANING.get(name):
            sections.setdefault(why, {})[name] = None
    yield "  not read by an engine"
    for why, names in sections.items():
        yield f"    {', '.join(names)}: {why}"
