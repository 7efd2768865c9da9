"""Shell completion: what may come next, read from the parser of the command line, from conf/ and from the registries.

`npucompose completion bash` prints what a shell is told once; the shell then asks `npucompose completion candidates`
with the words up to the cursor, which answers in a few hundred milliseconds and loads no torch and no Hydra.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from npucompose.cli.arguments import CONFIG_DIR, command_line
from npucompose.compose.conf import added_dirs, choices_of, conf_dir
from npucompose.errors import NpuComposeError
from npucompose.report.keys import keys
from npucompose.vendor.compiler import LEAVES, VERSION

PREFIXES = ("++", "+", "~")
"""Of Hydra's overrides: add or change, add, delete."""

BASH = r"""_npucompose() {
    local line="${COMP_LINE:0:COMP_POINT}" words current before
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]}-1]}"
    before="${current%"${current##*[=:]}"}"   # bash replaces what stands behind the last = or :
    mapfile -t COMPREPLY < <(npucompose completion candidates "${words[@]:1}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ "${COMPREPLY[0]}" == *[=.\[,] ]] && compopt -o nospace
}
complete -o default -F _npucompose npucompose
"""
ZSH = r"""#compdef npucompose
_npucompose() {
    local -a found open closed
    found=("${(@f)$(npucompose completion candidates "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    open=(${(M)found:#*[=.\[,]}) closed=(${found:#*[=.\[,]})
    (( ${#open} )) && compadd -S '' -- "${open[@]}"
    (( ${#closed} )) && compadd -- "${closed[@]}"
    (( ${#open} + ${#closed} )) || _files
}
compdef _npucompose npucompose
"""
FISH = r"""function _npucompose
    npucompose completion candidates (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
complete -c npucompose -a '(_npucompose)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def act(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell], end="")
    return 0


def answer(words: Sequence[str]) -> int:
    """One candidate a line; nothing where the words make no sense: a shell is no place for an error."""
    try:
        found = candidates(command_line(words[0] if words else None), words)
    except NpuComposeError:
        return 0
    print("".join(f"{one}\n" for one in found), end="")
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[str, ...]:
    """What the last word may become: `candidates(parser, ["run", "mode=ea"])` is `("mode=eager",)`.

    Empty where only the person knows: then a shell offers files.
    """
    *before, word = words or [""]
    place, rest = _descend(parser, before)
    found = dict.fromkeys(_here(place, rest, word))
    return tuple(one for one in found if one.startswith(word))


def _descend(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the innermost command that the words name, and the words after it."""
    rest = list(words)
    while rest:
        inner = _commands(parser).get(rest[0])
        if inner is None:
            break
        parser, rest = inner, rest[1:]
    return parser, rest


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _here(place: argparse.ArgumentParser, rest: Sequence[str], word: str) -> Iterator[str]:
    commands = _commands(place)
    if commands:
        yield from commands
        return
    flags: dict[str, argparse.Action] = {name: a for a in place._actions for name in a.option_strings}
    asked = flags.get(rest[-1]) if rest else None
    if asked is not None and asked.nargs != 0:
        yield from map(str, asked.choices or ())
        return
    if word.startswith("-"):
        yield from (name for name in flags if name.startswith("--"))
        return
    for action in place._actions:
        if not action.option_strings:
            yield from map(str, action.choices or ())
            if action.dest == "overrides":
                dirs = [name for flag, name in pairwise(rest) if flag in CONFIG_DIR and Path(name).is_dir()]
                yield from overrides(word, added_dirs(dirs))


def overrides(word: str, dirs: Sequence[Path] = ()) -> Iterator[str]:
    """What an override that begins like this may be: a key up to its next dot, or a value of the key."""
    sign = next((sign for sign in PREFIXES if word.startswith(sign)), "")
    key, equals, value = word[len(sign) :].partition("=")
    if not equals:
        yield from (sign + one for one in _keys(key, dirs))
        return
    cut = max(value.rfind(mark) for mark in ",[") + 1
    for one in _values(key, dirs):
        yield f"{sign}{key}={value[:cut]}{one}"


def _groups(dirs: Sequence[Path]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(d.name for folder in (conf_dir(), *dirs) for d in sorted(folder.iterdir()) if d.is_dir())
    )


def _keys(begun: str, dirs: Sequence[Path]) -> Iterator[str]:
    """Groups, and keys up to the next dot: `st` gives `streams=`, `streams.` and `strict=`."""
    depth = begun.count(".")
    if depth == 0:
        yield from (f"{group}=" for group in _groups(dirs))
    for key in _table():
        parts = key.split(".")
        if len(parts) == depth + 1:
            yield f"{key}="
        elif len(parts) > depth + 1:
            yield ".".join(parts[: depth + 1]) + "."


def _values(key: str, dirs: Sequence[Path]) -> Iterable[str]:
    if key == "pipeline.stages":
        from npucompose.experiment.stages import STAGES

        return STAGES.names()
    if key in _groups(dirs):
        return choices_of(key, dirs)
    return _table().get(key, ())


def _table() -> dict[str, tuple[str, ...]]:
    """{key: values that it can have, as far as they are a list}."""
    table = {row["key"]: _listed(row["takes"]) for row in keys()}
    table |= {f"compiler.{path}": _listed(leaf.allowed()) for path, leaf in LEAVES.items() if leaf.set_by == "compiler"}
    return table | {f"compiler.{VERSION}": ()}


def _listed(takes: Any) -> tuple[str, ...]:
    """`"true | false | null"` as its words; nothing where the table describes what it cannot list."""
    words = [word.strip() for word in str(takes).split("|")]
    return tuple(words) if all(word and " " not in word and word not in KINDS for word in words) else ()


KINDS = ("integer", "number", "text", "anything", "path")
"""Words of the tables that stand for any value of a kind."""
