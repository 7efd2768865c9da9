"""`npucompose explain --vllm RECIPE`: one page of what was asked of vLLM and of the recipe, what acts, and why not.

serve.yaml in vLLM 0.32.0, as installed here
  asked of vLLM              asked      acts               why not
  backend                    eager      npucompose         the recipe's compiler takes the pieces

Where vLLM is installed and its platform is a processor, what acts is read of the configuration that vLLM itself makes;
elsewhere it is what `configuration` says of the version that was read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.console import console
from npucompose.errors import ConfigError, unknown
from npucompose.experiment.job import settings_of
from npucompose.input_safety import plain_yaml
from npucompose.results.effective import DEFAULT, Setting, settings
from npucompose.table.structure import facts_of
from npucompose.vendor.option_specs import shown
from npucompose_vllm import READ_AT
from npucompose_vllm.configuration import (
    ACTING_MODE,
    DEFAULTS,
    GROUPS,
    effective,
    flat,
    why,
    without_effect,
)
from npucompose_vllm.installed import Installed, installed
from npucompose_vllm.options import VllmOptions
from npucompose_vllm.recipe import Recipe, path_of, read

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


MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", ACTING_MODE)
"""Of vLLM's compilation, by their numbers."""
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
CHOSEN: Mapping[str, tuple[str, ...]] = {"mode": MODES, "cudagraph_mode": GRAPH_MODES}
MOST_TOKENS = 2048
"""vLLM's max_num_batched_tokens where nothing and no model says another (vllm/config/scheduler.py)."""
NO_MEANING: Mapping[str, str] = {
    "model": "the model is vLLM's",
    "scenario": "vLLM calls the model",
    "pipeline": "an engine runs no stages",
    "benchmark": "an engine runs no stages",
    "expect": "an engine runs no stages",
    "padding": "an engine runs no stages",
    "sinking": "an engine runs no stages",
    "tiling": "it is about NPUs",
    "seed": "vLLM has a seed of its own",
    "logs": "vLLM's log says it",
    "debug": "an error in vLLM has its traceback",
    "trust": "a recipe that an engine loads is not trusted",
    "executor": "there is one engine and no sweep",
    "search": "there is one engine and no sweep",
    "retry": "there is one engine and no sweep",
    "tracker": "there is one engine and no sweep",
    "compile.fullgraph": "vLLM makes one graph of a model by itself",
    "shapes.mark_static": "vLLM decides which sizes are symbols",
    "shapes.mark_dynamic": "vLLM decides which sizes are symbols",
    "shapes.gears": "it is about NPUs",
}
"""What of an experiment an engine does not read, by section or option."""
SIZES, GENERAL = "extensions.vllm.sizes", "extensions.vllm.general"


@frozen(kw_only=True)
class OptionOutcome:
    """`OptionOutcome(option="backend", asked="eager", acts="npucompose", why="the recipe's compiler …")`."""

    option: str
    asked: Any = None
    """None where nobody asked."""
    acts: Any = None
    """None where the option, whatever it says, changes nothing; where it does, null is a value."""
    why: str | None = None
    """Why it does not act as asked, or as vLLM would have it where nobody asked; None: it does."""


@frozen(kw_only=True)
class Requested:
    """The page."""

    recipe: str
    vllm: str
    """The version."""
    source: str
    """`installed`: as this vLLM's configuration has it; `read`: as that version's sources say."""
    refusal: str | None
    """Why the recipe does not act at all; the engine's options are then those of vLLM alone, and none is listed."""
    engine: tuple[OptionOutcome, ...]
    own: tuple[OptionOutcome, ...]
    """The recipe's."""


def requested(
    recipe: Recipe, compilation: Mapping[str, Any], most: int = MOST_TOKENS, installed: Installed | None = None
) -> Requested:
    """The page of a recipe beside vLLM's `--compilation-config` and `--max-num-batched-tokens`.

    ConfigError where the configuration has an option that no version known here has, or that the installed lacks.
    """
    known = {*DEFAULTS, *GROUPS, *(installed.options if installed else ())}
    asked = {name: _named(name, value) for name, value in flat(compilation)}
    for name in asked:
        if name not in known and name.partition(".")[0] not in ("inductor_compile_config", "inductor_passes"):
            raise ConfigError(unknown("option of vLLM's compilation_config", name, sorted(known)))
    mode = asked.get("mode") or ACTING_MODE
    refusal = (
        None if mode == ACTING_MODE else f"vLLM is asked for compilation mode {mode}; it acts in {ACTING_MODE} (3)"
    )
    acting = dict(installed.options) if installed else effective(recipe, asked, most)
    return Requested(
        recipe=recipe.path,
        vllm=installed.version if installed else READ_AT,
        source="installed" if installed else "read",
        refusal=refusal,
        engine=() if refusal else tuple(_engine(recipe, asked, acting)),
        own=tuple(_own(recipe, refusal, most)),
    )


def _named(option: str, value: Any) -> Any:
    """Members of enumerations by their names, as vLLM takes them: `3` and `VLLM_COMPILE` are one mode."""
    names = CHOSEN.get(option)
    if names is None or value is None:
        return value
    if option == "mode" and type(value) is int and 0 <= value < len(names):
        return names[value]
    text = str(value).upper()
    if text not in names:
        raise ConfigError(unknown(option, str(value), names))
    return text


def _engine(recipe: Recipe, asked: Mapping[str, Any], acting: Mapping[str, Any]) -> Iterator[OptionOutcome]:
    for name in dict.fromkeys((*DEFAULTS, *acting, *asked)):
        if name not in GROUPS:
            yield _outcome(recipe, name, asked, acting)


def _outcome(recipe: Recipe, name: str, asked: Mapping[str, Any], acting: Mapping[str, Any]) -> OptionOutcome:
    wanted, nothing = asked.get(name), without_effect(recipe, name)
    if nothing is not None:
        return OptionOutcome(option=name, asked=wanted, why=nothing)
    of_recipe, inner = recipe.inductor, name.removeprefix("inductor_compile_config.")
    if inner != name and inner in of_recipe:
        reason = None if of_recipe[inner] == wanted else f"inductor.{inner} of the recipe says it"
        return OptionOutcome(option=name, asked=wanted, acts=of_recipe[inner], why=reason)
    acts = acting.get(name, wanted)
    usual = wanted if name in asked else DEFAULTS.get(name)
    if acts != usual or (name == "splitting_ops" and acts is None):
        return OptionOutcome(option=name, asked=wanted, acts=acts, why=why(recipe, name))
    return OptionOutcome(option=name, asked=wanted, acts=acts)


def _own(recipe: Recipe, refusal: str | None, most: int) -> Iterator[OptionOutcome]:
    lines = {line.option: line for line in recipe.checked.effective}
    within, beyond = recipe.sizes_within(most)
    for setting in (*settings_of(recipe.checked), *_engine_defaults(recipe)):
        name, reason = setting.option, setting.why_not or _no_meaning(setting)
        line = lines.get(name)
        asked = setting.value if line is None else line.requested
        in_vain = None if line is None else line.effective
        one = OptionOutcome(option=name, asked=asked, acts=setting.value if reason is None else in_vain, why=reason)
        if name == GENERAL and recipe.others != setting.value:
            mode = recipe.checked.experiment.mode.name
            one = evolve(one, acts=recipe.others, why=f"mode={mode} has the kernels of eager, for any number of tokens")
        if name == SIZES and beyond:
            one = evolve(one, acts=within, why=f"{beyond} are above max_num_batched_tokens={most}")
        yield evolve(one, acts=None, why=refusal) if refusal else one


def _engine_defaults(recipe: Recipe) -> tuple[Setting, ...]:
    """Options for the engine where the recipe says nothing to it."""
    if VllmOptions.name in recipe.checked.experiment.extensions.named:
        return ()
    values = {f"extensions.{VllmOptions.name}.{name}": value for name, value in facts_of(recipe.options).items()}
    return settings(values, {}, ())


def _no_meaning(setting: Setting) -> str | None:
    """Why an engine does not read it; None where it does."""
    section, whole = setting.option.partition(".")[0], ".".join(setting.option.split(".")[:2])
    if section == "compiler":
        return "it is an option of TorchAir's, which compiles for NPUs"
    return NO_MEANING.get(section, NO_MEANING.get(whole))


def said(recipe: Recipe) -> frozenset[str]:
    """Options of the recipe that somebody chose, and those for the engine."""
    chosen = [one for one in settings_of(recipe.checked) if not one.said_by.startswith(DEFAULT)]
    return frozenset(one.option for one in (*chosen, *_engine_defaults(recipe)))
