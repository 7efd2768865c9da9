"""The command line that starts an engine as data: `vllm serve M -cc.mode=3` is {"compilation_config": {"mode": 3}}.

A text or a shell script, of which nothing is run and no variable is read. Knows how options are written, and of their
names only the short ones.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, cast

from attrs import define, field, frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import plain_yaml

MOST_CHARACTERS = 64 * 2**10
"""Of a text: the longest command line of the public repositories has 4,000."""
DEEPEST = 8
"""Dots in the name of an option; vLLM's configuration has three."""
SHORT = {"O": "optimization_level", "cc": "compilation_config"}
"""vLLM's short options: `-O3`, `-cc.mode=3`; up to 0.11 -O was what -cc is now."""
STARTS = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.\S+|\bsglang\.launch_server\b")
"""Where the command of an engine begins in a script."""
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
WORDS = {"true": True, "false": False, "null": None}


@frozen(kw_only=True)
class CommandLine:
    data: dict[str, Any]
    """{option: its value; of one that is given by parts, a mapping}, in Python's spelling."""
    notes: tuple[str, ...] = ()
    """What of the text is no part of it."""


def read_command_line(text: str, name: str) -> CommandLine:
    """The options behind `vllm serve` or another engine's start, or all where there is none."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{name} has {len(text):,} characters; a command line has at most {MOST_CHARACTERS:,}.")
    starts = list(STARTS.finditer(text := _one_line(text)))
    begin = starts[0].end() if starts else 0
    end = starts[1].start() if len(starts) > 1 else len(text)
    given = _Options(name)
    given.take(_words(text[begin:end], name))
    notes = list(given.notes)
    if len(starts) > 1:
        notes.append(f"of {len(starts)} commands in {name} the first is read")
    return CommandLine(data=given.data, notes=tuple(notes))


def _one_line(text: str) -> str:
    """Continued lines joined; of `2> log` the number is no word."""
    return re.sub(r"\s\d(?=>)", " ", re.sub(r"\\\r?\n", " ", text))


def _words(text: str, name: str) -> list[str]:
    """Of one command: a shell's `;`, `&`, `|`, `>` or the end of the line ends it."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    found: list[str] = []
    try:
        for word in lexer:
            if found and not word.strip(";&|<>\n"):
                break
            found += [word] if word.strip() else []
    except ValueError as error:
        raise ConfigError(f"{name} is no command line: {str(error).lower()}.") from None
    return found


@define
class _Options:
    name: str
    data: dict[str, Any] = field(factory=dict[str, Any])
    notes: list[str] = field(factory=list[str])

    def take(self, words: Sequence[str]) -> None:
        """Parts (`--a.b 1`) replace the whole (`--a '{"b": 1}'`), as in vLLM, whichever stands first."""
        parts: dict[str, dict[str, Any]] = {}
        for option, values in _grouped(words):
            path = _path(option)
            if len(path) > DEEPEST:
                raise ConfigError(f"{self.name}: {option[:60]} has more than {DEEPEST} parts.")
            value = self._value(option, values)
            if len(path) > 1:
                _put(parts.setdefault(path[0], {}), path[1:], value)
            else:
                key = "compilation_config" if path[0] == SHORT["O"] and isinstance(value, dict) else path[0]
                self._once(key, value)
        for key, value in parts.items():
            if isinstance(self.data.get(key), dict):
                self.notes.append(f"{key} is given as a whole and by parts: vLLM takes the parts alone")
                del self.data[key]
            self._once(SHORT["cc"] if key == SHORT["O"] else key, value)

    def _once(self, key: str, value: Any) -> None:
        if key in self.data:
            self.notes.append(f"--{key.replace('_', '-')} is given twice: the last counts")
        self.data[key] = value

    def _value(self, option: str, values: Sequence[str]) -> Any:
        """An option alone is true; several words are a list; a name that ends in + takes a list with commas."""
        where = f"{self.name}: {option.split('=')[0][:60]}"
        if option.split("=")[0].endswith("+"):
            return [_plain(word, where) for value in values for word in value.split(",")]
        read = [_plain(value, where) for value in values]
        return True if not read else read[0] if len(read) == 1 else read


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(an option as it stands, its values); words before the first option are the model's name."""
    option: str | None = None
    values: list[str] = []
    for word in words:
        if not word.startswith("-") or NUMBER.fullmatch(word) or word == "-":
            values.append(word)
            continue
        if option is not None:
            yield option, values
        option, values = word, []
        name, equals, value = word.partition("=")
        if equals:
            option, values = f"{name}=", [value]
        elif re.fullmatch(r"-O\d", word):
            option, values = "-O", [word[2:]]
    if option is not None:
        yield option, values


def _path(option: str) -> list[str]:
    """`--compilation-config.pass_config.x=` is [compilation_config, pass_config, x]: dashes are those of the first."""
    first, *rest = option.rstrip("=").rstrip("+").lstrip("-").split(".")
    return [SHORT.get(first, first.replace("-", "_")), *rest]


def _plain(word: str, where: str) -> Any:
    """A word as vLLM reads it: JSON, or the text that it is."""
    if word[:1] in "{[" and word:
        return plain_yaml(word, where)
    if NUMBER.fullmatch(word):
        return int(word) if re.fullmatch(r"-?\d{1,18}", word) else float(word)
    return WORDS.get(word.lower(), word)


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *groups, name = path
    for group in groups:
        inner = tree.setdefault(group, {})
        tree = cast("dict[str, Any]", inner) if isinstance(inner, dict) else tree
    known: Any = tree.get(name)
    tree[name] = [*cast("list[Any]", known), *value] if isinstance(known, list) and isinstance(value, list) else value
