"""What of a configuration is not trusted: files that did not come with the package, and values that no file may say.

Such a file is read to plain data by an allow-list, then composed.

It may say what an experiment is: choices of npucompose's groups, values of its keys, `${a.b}`. It may not speak of
Hydra, name code, call a resolver or put its content anywhere but at the top or in its own group; an experiment's lies
at the top.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any, cast

import attrs

from npucompose.compose.conf import line_of, line_that_names
from npucompose.compose.references import CLOSED, PLAIN, VARIABLE, Environment
from npucompose.errors import ConfigError, listed, raise_for, shown_path, unknown
from npucompose.input_safety import InputLimits, Resolvers, plain_data, read_text
from npucompose.results.effective import COMMAND_LINE
from npucompose.schema.experiment import Experiment
from npucompose.schema.sweep import Executor, Ray
from npucompose.vendor.compiler import EVERY_LEAF, CompilerOptions

MOST_BYTES = 1_000_000
LIMITS = InputLimits(most_values=20_000, deepest=40, aliases=True)
GLOBAL, EXPERIMENT = "_global_", "experiment"
CHOICE = re.compile(r"\w[\w.+-]*")
GROUP = re.compile(r"/?\w[\w-]*(/\w[\w-]*)*")
HYDRAS = re.compile(r"_[a-z]+_")
"""Keys by which Hydra's instantiate finds what to call."""
OWN = "only npucompose's own conf/ and the command line may set Hydra."

NAMED = re.compile(rf"\$\{{{VARIABLE.pattern}\}}")
"""A variable of the environment, whole."""

IsGroup = Callable[[str], bool]


def read_foreign(
    file: Path, config_path: str, is_group: IsGroup, environment: Environment = CLOSED
) -> tuple[dict[Any, Any], str | None]:
    """(content, package) of the file that Hydra calls `config_path` ("model/mine"); the package as the header says it:
    `_global_`, the group's own, or None. ConfigError names every line and key that is refused.

    `is_group` knows the groups of the package and of installed extensions; `environment` holds the variables that the
    person has named for files of their own.
    """
    text = read_text(file, MOST_BYTES)
    group = config_path.rpartition("/")[0]
    problems = list(_group_problems(group, is_group))
    package = _package(text, group, problems)
    content = plain_data(text, str(file), LIMITS, yaml_resolvers())
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is no configuration: it must hold a mapping of keys.")
    made = cast("dict[Any, Any]", content)
    if not problems:
        problems += _key_problems(made, group, package)
        problems += _default_problems(made.get("defaults"), group, is_group)
        problems += _value_problems({key: value for key, value in made.items() if key != "defaults"}, "", environment)
    raise_for([f"{_place(file, problem)}: {problem}" for problem in dict.fromkeys(problems)])
    return made, package


def _place(file: Path, problem: str) -> str:
    """`mine/experiment/x.yaml:3`: where the first thing stands that the sentence quotes."""
    quoted = re.search(r"'([^']+)'", problem)
    if quoted is None:
        return shown_path(str(file))
    line = line_of(str(file), quoted[1].split("."))
    return f"{shown_path(str(file))}:{line}" if line else line_that_names(str(file), *quoted[1].split())


@cache
def yaml_resolvers() -> Resolvers:
    """What OmegaConf takes for a number, so that a file means the same wherever it lies: `1e3` is one."""
    from omegaconf._utils import get_yaml_loader

    return get_yaml_loader().yaml_implicit_resolvers


def is_hydra(path: str) -> bool:
    return re.split(r"[./]", path, maxsplit=1)[0] == "hydra"


def _group_problems(group: str, is_group: IsGroup) -> Iterator[str]:
    if is_hydra(group):
        yield f"a file may not hold hydra.*: {OWN}"
    elif group and not is_group(group):
        yield f"'{group}' is no group of npucompose: a folder adds choices to those that there are."


def _package(text: str, group: str, problems: list[str]) -> str | None:
    """What the header says. Hydra reads it in the comments that the file begins with."""
    said = None
    own = "" if group == EXPERIMENT else group.replace("/", ".")
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        header = re.match(r"#+\s*@\s*(\S*)\s*(.*)", stripped)
        if header is None:
            continue
        key, value = header[1], header[2].strip()
        if key != "package":
            problems.append(f"the header @{key} is not known; a file may say @package.")
        elif is_hydra(value):
            problems.append(f"a file may not hold hydra.*: {OWN}")
        elif value not in (GLOBAL, own) or not value:
            problems.append(f"its package may be {listed([p for p in (GLOBAL, own) if p])}, not '{value}'.")
        said = value
    return said


def _key_problems(content: Mapping[Any, Any], group: str, package: str | None) -> Iterator[str]:
    """Of the first level, where the content goes to the top; the schema checks the others, once they are composed."""
    if "hydra" in content:
        yield f"a file may not hold hydra.*: {OWN}"
    if package == GLOBAL or group in ("", EXPERIMENT):
        known = [field.name for field in attrs.fields(Experiment)]
        for key in content:
            if key not in (*known, "defaults", "hydra"):
                yield unknown("key", str(key), known)


def includes(defaults: Any, group: str) -> Iterator[tuple[str, str, str]]:
    """(the entry as written, group, choice) for each choice of a defaults list; the group is absolute."""
    for entry in cast("list[Any]", defaults) if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            yield entry, group, entry
        elif isinstance(entry, Mapping):
            for key, chosen in cast("Mapping[Any, Any]", entry).items():
                words = str(key).split()
                named = words[-1] if words else ""
                absolute = named[1:] if named.startswith("/") else f"{group}/{named}" if group else named
                for one in cast("list[Any]", chosen) if isinstance(chosen, list) else [chosen]:
                    yield str(key), absolute, "" if one is None else str(one)


def _default_problems(defaults: Any, group: str, is_group: IsGroup) -> Iterator[str]:
    if defaults is not None and not isinstance(defaults, list):
        yield "its defaults must be a list."
        return
    for entry in defaults or ():
        if not isinstance(entry, (str, dict)) or (isinstance(entry, dict) and len(cast("dict[Any, Any]", entry)) != 1):
            yield f"the defaults list may not hold {entry!r}: write `- group: choice`."
    chosen = attrs.fields_dict(Experiment)
    every = list(includes(defaults, group))
    has_choices = group or any(entry is choice and choice != "_self_" for entry, _, choice in every)
    for entry, absolute, choice in every:
        *how, named = entry.split() or [""]
        if entry is not choice and (set(how) - {"override", "optional"} or not GROUP.fullmatch(named)):
            yield f"the defaults list may not name '{entry}': write `override /group: choice`."
        elif is_hydra(absolute):
            yield f"the defaults list may not name '{entry}': {OWN}"
        elif entry is not choice and not is_group(absolute) and is_group(named):
            yield f"the defaults list may not name '{entry}': write `override /{named}: {choice or 'CHOICE'}`."
        elif "override" in how and not choice and absolute in chosen:
            yield f"the defaults list names no choice of '{entry}': write `override /{absolute}: CHOICE`."
        elif entry is not choice and not is_group(absolute):
            groups = [name for name in (EXPERIMENT, *chosen) if is_group(name)]
            yield f"the defaults list may not name '{entry}': {unknown('group', absolute, groups)}"
        elif choice and absolute in chosen and has_choices and group != absolute and "override" not in how:
            yield (
                f"the defaults list may not name '{entry}': {absolute} has a choice already; write `override "
                f"/{absolute}: {choice}`."
            )
        elif choice and not CHOICE.fullmatch(choice):
            yield f"the defaults list may not name '{choice}': a choice is a name, as in `override /model: mlp`."


def _value_problems(tree: Any, path: str, environment: Environment) -> Iterator[str]:
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(tree, Mapping):
        items = iter(cast("Mapping[Any, Any]", tree).items())
    elif isinstance(tree, list):
        items = iter(enumerate(cast("list[Any]", tree)))
    for key, value in items:
        here = f"{path}.{key}" if path else str(key)
        if isinstance(key, str) and HYDRAS.fullmatch(key):
            yield f"'{here}' would name code to run; choices are found by registered name."
        if isinstance(value, str) and (problem := _text_problem(value, environment)):
            yield f"'{here}' {problem}"
        yield from _value_problems(value, here, environment)


def _text_problem(text: str, environment: Environment) -> str | None:
    left = NAMED.sub(lambda found: "" if found["name"] in environment else found[0], PLAIN.sub("", text))
    if "${" not in left:
        return None
    if re.search(r"\$\{[^{}]*:", left):
        return (
            f"uses a resolver ({text[:60]}); a file may only refer to other values, ${{model.size}}, and to variables "
            "that the command line names: --env NAME."
        )
    return f"is not understood ({text[:60]}); a file may refer to one other value: ${{model.size}}."


# Values that only the command line may say: folders that are written to, the address of a cluster.

WRITTEN = ("path", "dir")
"""Kinds of leaves that name a folder which is written to."""


def path_problems(options: CompilerOptions, said_by: Callable[[str], str]) -> Iterator[str]:
    """A sentence for each folder that the vendor's compiler would write to, leads out of the run directory, and was not
    named by the person; `said_by` tells the origin of a dotted key."""
    for path, value in options.changed().items():
        if EVERY_LEAF[path].kind not in WRITTEN or not isinstance(value, str):
            continue
        key, place = f"compiler.{path}", PurePath(value)
        if (place.is_absolute() or ".." in place.parts or value.startswith("~")) and said_by(key) != COMMAND_LINE:
            yield (
                f"{key}={value!r} leads out of the run directory and comes from {said_by(key)}; only the command line "
                "itself can say that."
            )


def address_problems(executor: Executor, said_by: Callable[[str], str], *, trust: bool) -> Iterator[str]:
    """A sentence where a file names the Ray cluster: Ray unpickles what a cluster answers."""
    origin = said_by("executor.address")
    if isinstance(executor, Ray) and executor.address != "auto" and origin != COMMAND_LINE and not trust:
        yield (
            f"executor.address={executor.address} comes from {origin}, and a cluster's answers can run code here. If "
            "you trust it, say the address on the command line, or trust=true."
        )
