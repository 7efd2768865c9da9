"""The overrides of a command line: what is wrong with them, found before anything is composed from them, and those for
Hydra's launchers and sweepers, translated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from npucompose.compose.conf import conf_dir, installed_dirs
from npucompose.errors import ConfigError, did_you_mean, listed, raise_for, unknown
from npucompose.schema.sections import SECTIONS
from npucompose.table.gone import instead_of

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from npucompose.compose.merge import Keys


SINGULAR = {"passes": "pass"}
LONGEST_KEY = 500
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
REFUSED_OF_HYDRA = {
    "hydra.searchpath": "add a folder of choices with --config-dir",
    "hydra.mode": "write -m for a sweep",
    "hydra/sweeper": "sweeps are npucompose's own, and hydra/sweeper=optuna means search=optuna",
    "hydra.sweeper": "sweeps are npucompose's own; search.space and search.objectives are for search=optuna",
    "hydra/launcher": "executor=… says where the jobs of a sweep run",
    "hydra.launcher": "executor=… says where the jobs of a sweep run",
}


def parsed_overrides(overrides: Sequence[str]) -> list[Override]:
    from hydra.errors import HydraException

    parsed, problems = [], []
    for text in overrides:
        try:
            if not re.search(r"\w", text.partition("=")[0]):
                raise ValueError("it names no key")
            parsed.append(_parsed(text))
        except (HydraException, ValueError, RecursionError) as error:  # the second: a number of too many digits
            reason = _grammar(str(error).splitlines()[0].rstrip("."), text)
            problems.append(f"'{short(text)}' is not an override: {reason}. Write key=value, group=choice, or ~key.")
    raise_for(problems)
    return parsed


def _grammar(said: str, text: str) -> str:
    """What is wrong with the text, without the names that the parser's grammar has; `said` is what the parser says."""
    key, equals, value = text.partition("=")
    bare = QUOTED.sub("''", text)
    if "missing EQUAL" in said and not equals:
        return "it has no '='"
    if strange := re.search(r"[^A-Za-z0-9_./@+~$-]", key):
        return f"no key has a '{strange[0]}'"
    if not re.search(r"(?:token recognition|mismatched|extraneous|viable|missing|while evaluating)", said):
        return said
    return _brackets(bare) or _mapping(key, value) or _letters(said, key, value, bare)


def _brackets(bare: str) -> str | None:
    for mark, end in ("[]", "{}", "()"):
        if bare.count(mark) != bare.count(end):
            return f"'{mark}' is not closed" if bare.count(mark) > bare.count(end) else f"'{end}' closes nothing"
    return "a quote is not closed" if re.search("[\"']", bare.replace("''", "")) else None


def _mapping(key: str, value: str) -> str | None:
    """A mapping in the form of other languages, with how it is written here."""
    plain = re.sub(r"([{,]\s*)([\"'])([\w.-]+)\2(\s*:)", r"\1\3\4", value)
    if re.search(r"[{,]\s*[\"'][^\"']*[\"']\s*:", plain):
        return "a key of a mapping cannot stand in quotes, and holds letters, numbers and -"
    if plain != value:
        return f"the keys of a mapping stand without quotes, as in {key}={plain}"
    colons = re.sub(r"([{,]\s*[\w.-]+)=", r"\1: ", value)
    if colons != value and value.startswith(("{", "[")):
        return f"a mapping is written with ':', as in {key}={colons}"
    return "a mapping is {name: value}, and a list [value]" if value.startswith("{") and ":" not in value else None


def _letters(said: str, key: str, value: str, bare: str) -> str:
    """The parser takes the letters of ASCII and some signs as they are, and anything within quotes."""
    if call := re.search(r"while evaluating '(\w+)", said):
        return f"{call[1]}(…) does not take these arguments"
    if re.search(r"(?:^|[=,\[(])\s*,|,\s*(?:$|[\])}])", bare.partition("=")[2]):
        return "a value is missing beside ','"
    unread = re.match(r"token recognition error at: '(.)", said)
    sign = re.search(r"[=(){}\[\]]", bare.partition("=")[2])
    letter = unread[1] if unread else sign[0] if sign else ""
    quoted = f", as in \"{key}='{value}'\"" if "'" not in value and value[:1] not in ("{", "[") else ""
    what = f"'{letter}'" if letter else "such a text"
    return f"{what} must stand in quotes{quoted}"


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Override:
    """The points of a sweep say the same few things again and again, and the parser is slow."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not __debug__ and re.search(r"[({]", QUOTED.sub("", text)):
        raise ValueError(  # Hydra's parser reads on within its assertions
            "Python runs without assertions (PYTHONOPTIMIZE, or python -O), and no mapping and no function can be read "
            "then: unset it"
        )
    return OverridesParser.create().parse_override(text)


def hydra_problem(o: Override) -> str | None:
    """Why an override of Hydra itself is refused: it would bypass a check, or be a second knob for one thing."""
    key = o.key_or_group
    for refused, instead in REFUSED_OF_HYDRA.items():
        if key == refused or key.startswith(f"{refused}."):
            return f"'{o.input_line}' cannot be set here: {instead}."
    return None


def group_problems(loader: ConfigLoader, o: Override) -> list[str]:
    """A sentence for each choice of a group that does not exist, or that is named twice."""
    if o.is_sweep_override():
        return [needs_multirun(o)]
    group, value = o.key_or_group, o.value()
    if (o.is_add() or o.is_force_add()) and group != "passes" and _is_ours(group):
        return [f"'{o.input_line}': {group} is chosen already, so nothing can be added: write {group}={value}."]
    if value is None or isinstance(value, dict):
        return [] if o.is_delete() else [f"'{o.input_line}' names no choice. ~{group} leaves the whole group out."]
    chosen = value if isinstance(value, list) else [value]
    problems = []
    for name in dict.fromkeys(map(str, chosen)):
        if not all(isinstance(c, str) for c in chosen) or not _is_choice(loader, group, name):
            choices = loader.get_group_options(group)
            problems.append(unknown(SINGULAR.get(group, group), short(name), choices, where=short(str(o.input_line))))
    twice = [name for name, times in Counter(map(str, chosen)).items() if times > 1]
    return [*problems, *(named_twice(group, name, str(o.input_line)) for name in twice)]


def _is_ours(group: str) -> bool:
    """A group that each configuration has a choice of: a person's own folder may hold others."""
    return any((folder / group).is_dir() for folder in (conf_dir(), *installed_dirs()))


def _is_choice(loader: ConfigLoader, group: str, name: str) -> bool:
    """Names only: a path could lead out of the folder, and a long one is none that a disk could hold."""
    if len(name) > LONGEST_KEY or ".." in name or name.startswith("/"):
        return False
    return any(source.is_config(f"{group}/{name}") for source in loader.get_sources())


def short(text: str) -> str:
    """As it stands in a message."""
    return text if len(text) <= LONGEST_KEY else f"{text[:60]}…"


def needs_multirun(o: Override) -> str:
    return f"'{o.input_line}' names several values: a sweep needs -m (python run.py -m {o.input_line})."


def named_twice(group: str, name: str, where: str) -> str:
    advice = (
        " To run it twice give one a label of its own: +passes.again={pass: " + name + "}." if group == "passes" else ""
    )
    return f"'{name}' is named twice @ {where}. A mapping holds a name once.{advice}"


def value_problem(base: Mapping[str, Any], keys: Keys, o: Override) -> str | None:
    """Why `o` is refused: the option table has no such key. Keys added with `+` are the schema's business."""
    if o.is_add() or o.is_force_add() or o.is_hydra_override():
        return None
    if o.is_sweep_override():
        return needs_multirun(o)
    parts = keys.split(o.key_or_group)
    return _no_place(base, keys, parts, o.value(), [], str(o.input_line))


def _no_place(node: Any, keys: Keys, parts: list[str], value: Any, walked: list[str], text: str) -> str | None:
    """Of what is left of a key below `node`, then of the keys of a mapping that goes there."""
    here = ".".join(walked)
    if isinstance(node, list) or here in keys.free:
        return None
    if not parts:
        inside = value.items() if isinstance(value, Mapping) and isinstance(node, Mapping) else ()
        found = (_no_place(node, keys, [str(key)], inner, walked, text) for key, inner in inside)
        return next((problem for problem in found if problem), None)
    if not isinstance(node, Mapping):
        return f"'{here}' is a value and has no keys @ {text}."
    first, *rest = parts
    if first in node:
        return _no_place(node[first], keys, rest, value, [*walked, first], text)
    if keys.takes([*walked, *parts], value):
        return None
    return _unknown_key(first, list(map(str, node)), walked, text)


def _unknown_key(part: str, keys: list[str], walked: list[str], text: str) -> str:
    if walked == ["extensions"] or (part == "extensions" and not walked):
        return unknown(SECTIONS.kind, text.partition("=")[0].split(".")[1], SECTIONS.names(), text)
    at = f" of {'.'.join(walked)}" if walked else ""
    if not keys:
        return f"unknown key '{part}'{at} @ {text}. It holds no keys yet: +{text} adds one."
    gone = instead_of(".".join([*walked, part]))
    return f"unknown key '{part}'{at} @ {text}. {did_you_mean(part, keys)}Choices: {listed(keys)}.{gone}"


@contextmanager
def translate_hydra_errors(problems: Sequence[str] = ()) -> Iterator[None]:
    """What Hydra, OmegaConf and the YAML reader refuse becomes a ConfigError, after the problems known so far."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError) as error:
        # Hydra says some things with the last two, that a group has no name for one
        raise ConfigError(*problems, words(error)) from error


def missing_choice(error: Any, where: str, choices: Sequence[str] = ()) -> str:
    """What Hydra's MissingConfigException says: a choice that a defaults list names, or the file of the whole. Of a
    choice in a list it does not say among which."""
    missing, choices = str(error.missing_cfg_file).removesuffix(".yaml"), error.options or choices
    group, _, name = missing.rpartition("/")
    if not group:
        return f"--config-name {missing}: there is no such file in conf/, nor in --config-dir."
    return unknown(SINGULAR.get(group, group), name, list(choices), where=where)


def words(error: BaseException) -> str:
    """What Hydra says, in one sentence without its search path; the useful one is often only in `__cause__`."""
    if getattr(error, "missing_cfg_file", None):
        return missing_choice(error, "a defaults list")
    said = "\n".join(map(str, (error.__cause__, error)))
    if unknown_key := re.search(r"Key '[^']*'(?: is)? not in .{0,2000}?full_key: (\S+)", said, re.DOTALL):
        return f"unknown key '{unknown_key[1]}': `npucompose run --hydra-help` says where Hydra's own are listed."
    if other := re.match(r"In '(.+?)': Could not override '([\w/]+)", str(error)):
        return (
            f"{other[1]}.yaml: the defaults list may not choose another {other[2]}: an experiment does (a file of "
            f"experiment/ that begins with `# @package _global_`), and the command line, {other[2]}=…."
        )
    if deleted := re.match(r"Could not delete '(\w+)'. No match in the defaults list", str(error)):
        return f"'~{deleted[1]}': no file of {deleted[1]} is chosen here, so there is nothing to leave out."
    texts = [str(e).strip() for e in (error.__cause__, error) if e is not None and str(e).strip()]
    first = texts[0].splitlines() if texts else [type(error).__name__]
    if mark := getattr(error, "problem_mark", None):
        first = [f"{mark.name}:{mark.line + 1}: {getattr(error, 'problem', None) or first[0]}"]
    return " ".join(line.strip() for line in first if line.strip() and "object_type=" not in line)


# Hydra's launchers and sweepers, translated: who writes `hydra/launcher=joblib` wants `executor=local`. The names and
# keys are those of Hydra's plugins: https://hydra.cc/docs/plugins/joblib_launcher, /submitit_launcher, /ray_launcher,
# /optuna_sweeper. What is not in the tables stays refused, with what to write instead.

LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"


@frozen(kw_only=True)
class Ours:
    """What takes the place of a choice of Hydra's."""

    group: str
    overrides: tuple[str, ...]
    keys: Mapping[str, str] = field(factory=dict[str, str])
    """{Hydra's key below the plugin's own: ours}."""


SUBMITIT = {
    "array_parallelism": "executor.jobs", "partition": "executor.partition", "timeout_min": "executor.time_limit_min",
    "cpus_per_task": "executor.cpus", "gres": "executor.gres",
    **{name: f"+executor.parameters.{name}" for name in ("account", "comment", "constraint", "exclude", "qos")},
}  # fmt: skip
RAY = {
    "ray.init.address": "executor.address", "ray.remote.num_cpus": "executor.cpus",
    "ray.remote.num_gpus": "executor.devices",
}  # fmt: skip
CHOICES = {
    f"{LAUNCHER}=joblib": Ours(group="executor", overrides=("executor=local",), keys={"n_jobs": "executor.jobs"}),
    f"{LAUNCHER}=submitit_local": Ours(
        group="executor", overrides=("executor=slurm", "executor.cluster=local"), keys=SUBMITIT
    ),
    f"{LAUNCHER}=submitit_slurm": Ours(group="executor", overrides=("executor=slurm",), keys=SUBMITIT),
    f"{LAUNCHER}=ray": Ours(group="executor", overrides=("executor=ray",), keys=RAY),
    f"{SWEEPER}=optuna": Ours(
        group="search",
        overrides=("search=optuna",),
        keys={"n_trials": "search.trials", "sampler.seed": "search.seed", "n_jobs": "executor.jobs"},
    ),
}
SAMPLER = f"{SWEEPER}/sampler"
ALL_CORES = {("n_jobs", "-1"): "null"}
"""joblib's word for one job on each core is ours for it."""
SET = re.compile(r"^(hydra\.job\.env_set\.)")
"""A mapping of Hydra's that is empty, so that it takes a name only with a + before it."""


def translated(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the overrides with ours in the place of Hydra's, a sentence for each plugin of Hydra's that was named).

    `translated(["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"])` is `(["executor=local", "executor.jobs=4"],
    ["hydra/launcher=joblib hydra.launcher.n_jobs=4 is executor=local executor.jobs=4 here."])`. With Hydra's Optuna
    sweeper, values after `-m` are its space: `seed=range(0,3)` becomes a dimension of `search.space`.
    """
    overrides = [SET.sub(r"++\1", text) for text in overrides]
    parsed = parsed_overrides(overrides)
    named = {o.key_or_group: ours for o in parsed if (ours := CHOICES.get(str(o.input_line)))}
    if not named:
        return list(overrides), []
    _refuse_twice(parsed, named)
    replaced = {str(o.input_line): texts for o in parsed if (texts := _replacing(o, named))}
    if SWEEPER in named:
        replaced.update(_space([o for o in parsed if o.is_sweep_override()]))
    texts = [text for o in parsed for text in replaced.get(str(o.input_line), (str(o.input_line),))]
    theirs = [text for text in overrides if text in replaced]
    ours = [text for one in theirs for text in replaced[one]]
    return texts, [f"{' '.join(theirs)} is {' '.join(ours)} here."]


def _refuse_twice(parsed: Sequence[Override], named: Mapping[str, Ours]) -> None:
    groups = {ours.group: key for key, ours in named.items()}
    for o in parsed:
        if o.key_or_group in groups:
            raise ConfigError(
                f"{groups[o.key_or_group]}=… and {o.input_line} say the same thing twice: leave one of them out."
            )


def _replacing(o: Override, named: Mapping[str, Ours]) -> tuple[str, ...]:
    """Empty where the override is none of a plugin that was chosen."""
    key = o.key_or_group
    if key in named:
        return named[key].overrides
    if key == SAMPLER and SWEEPER in named:
        return (f"search.sampler={_said(o)}",)
    for plugin, ours in named.items():
        begun = f"{plugin.replace('/', '.')}."
        inner = key.removeprefix(begun)
        if key.startswith(begun) and inner in ours.keys:
            return (f"{ours.keys[inner]}={ALL_CORES.get((inner, _said(o)), _said(o))}",)
    return ()


def _said(o: Override) -> str:
    """The value as it was written."""
    return str(o.input_line).partition("=")[2]


def _space(varying: Sequence[Override]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What varies as one override of `search.space`, in the place of the first; the others say nothing more."""
    with translate_hydra_errors():
        dimensions = [f"{o.key_or_group}:{_dimension(o)}" for o in varying]
    for number, o in enumerate(varying):
        yield str(o.input_line), (f"search.space={{{','.join(dimensions)}}}",) if number == 0 else ()


def _dimension(o: Override) -> str:
    """`interval(1,8)` is `{low:1.0,high:8.0}`, `a,b` is `{one_of:[a,b]}`, as Hydra's sweeper reads them."""
    from hydra.core.override_parser.types import IntervalSweep

    value: Any = o.value()
    if isinstance(value, IntervalSweep):
        log = ",log:true" if "log" in value.tags else ""
        return f"{{low:{value.start},high:{value.end}{log}}}"
    return f"{{one_of:[{','.join(map(str, o.sweep_string_iterator()))}]}}"
