"""The command line that starts an engine as data: `vllm serve M -cc.mode=3` is {"compilation_config": {"mode": 3}}.

A text or a shell script. Every word of it is in the data, or in a note (it is read elsewhere) or in a line (it is not
known, or says more). Knows how options are written, and of their names only those below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from attrs import define, evolve, field, frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import SECRET, load_yaml, plain_yaml
from npucompose.recipe.dialects import CommandLine
from npucompose.recipe.vendor_options import Unread
from npucompose.vendor.option_specs import shown
from npucompose.vendor.variables import read_by_ascend
from npucompose_extras.engine_dialects.start_script import ASSIGNED, DECLARES, GAP, Command, Script, Word

DEEPEST = 8
"""Dots in the name of an option; vLLM's configuration has three."""
SHORT = {"O": "optimization_level", "cc": "compilation_config"}
"""vLLM's short options: `-O3`, `-cc.mode=3`; up to 0.11 -O was what -cc is now."""
FLAGS = ("enforce_eager", "disable_cuda_graph", "enable_torch_compile")
"""Options that decide what is compiled and take no word: one behind them is another's."""
LISTS = ("cudagraph_capture_sizes", "cuda_graph_bs")
"""Options that decide what is compiled and take any number of words."""
MODEL = "model_tag"
"""Key of the words before the first option, as vLLM has it."""
ADDED, ASCEND = "additional_config", "ascend_environment"
"""vllm-ascend's section, and the key in it of Ascend's variables that a script sets, by which the platform is known."""
SECRETS = re.compile(r"(api_key|_token|password|secret)$")
"""Options whose value stands in no recipe."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"enforce_eager": False},
    "sglang": {"disable_cuda_graph": False},
}
"""{engine: an option as it is where nothing is said}: vLLM 0.32.0, sglang 041ddabdee31; it names the engine."""
PLACE = "set it where npucompose runs, or with hydra.job.env_set.NAME=value"
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
WORDS = {"true": True, "false": False, "null": None}
_STARTS = re.compile(r"(?:\S*/)?(vllm|sglang)$|(vllm)(?:\.|/)entrypoints(?:\.|/)\S+|(sglang)\.launch_server$")


@frozen
class _Start:
    command: Command
    engine: str
    before: tuple[Word, ...]
    words: tuple[Word, ...]


def read_command_line(text: str, name: str) -> CommandLine:
    """The options behind `vllm serve` or another engine's start, or all where there is none."""
    script = Script(text, name)
    starts = list(_starts(script.commands))
    for inner in () if starts else _texts_within(script):
        if (found := _inner(inner, script, name)) is not None:
            return found
    first = starts[0] if starts else _Start(*_without_engine(script))
    given = _Options(script)
    given.configured = _configured(first.words, given, Path(name).parent)
    given.take(first.words)
    given.data |= {name: value for name, value in DEFAULTS.get(first.engine, {}).items() if name not in given.data}
    variables = [*_variables(script, first)]
    if ascend := sorted({name for name, _, _ in variables if read_by_ascend(name)} if starts else ()):
        added = given.data.get(ADDED)
        given.data[ADDED] = {**(cast("dict[str, Any]", added) if isinstance(added, dict) else {}), ASCEND: ascend}
    if len(starts) > 1:
        lines = ", ".join(str(start.words[0].line if start.words else 0) for start in starts)
        given.notes.append(f"of {len(starts)} commands in {name} (lines {lines}) the first is read")
    given.notes += _beside(script, starts, first)
    unread = [*(_variable(script, *one) for one in variables), *given.unread]
    return CommandLine(data=given.data, notes=tuple(given.notes), unread=tuple(unread))


# Which command.


def _starts(commands: Sequence[Command]) -> Iterator[_Start]:
    for command in commands:
        for at, word in enumerate(command.words):
            found = _STARTS.match(word.text)
            after = command.words[at + 1 : at + 2]
            serves = bool(after) and after[0].text == "serve"
            if found and (serves or not found[1]):
                engine = found[1] or found[2] or found[3]
                yield _Start(command, engine, command.words[:at], command.words[at + 1 + serves :])
                break


def _without_engine(script: Script) -> tuple[Command, str, tuple[Word, ...], tuple[Word, ...]]:
    """The first command that is more than assignments."""
    first = next((one for one in script.commands if one.words and not one.assigns), Command(()))
    return first, "", (), first.words


def _texts_within(script: Script) -> Iterator[Word]:
    """Words and here-documents that may be commands themselves: `bash -c "vllm serve M"`."""
    for command in script.commands:
        yield from (word for word in (*command.words, *command.documents) if re.search(r"\s", word.text))


def _inner(word: Word, script: Script, name: str) -> CommandLine | None:
    """Of a text within the text, if an engine starts there."""
    try:
        found = read_command_line(script.shown(word.text), name) if "serve" in word.text or "." in word.text else None
    except ConfigError:
        return None
    started = found is not None and any(key in found.data for one in DEFAULTS.values() for key in one)
    if not started or found is None:
        return None
    variables = tuple(_variable(script, *one) for one in _variables(script, None))
    note = f"the command is a text within line {word.line}"
    return evolve(found, notes=(note, *found.notes), unread=(*variables, *found.unread))


# What stands around it.


def _variables(script: Script, start: _Start | None) -> Iterator[tuple[str, Word, bool]]:
    """(name, `NAME=value`, whether it is for other programs too) of all that the text sets."""
    for command in script.commands:
        own = start is not None and command is start.command
        words = start.before if start is not None and own else command.assigns or _leading(command)
        exported = own or not command.assigns or command.words[0].text in DECLARES
        for word in words:
            if found := ASSIGNED.match(word.text):
                yield found[1], word, exported


def _leading(command: Command) -> tuple[Word, ...]:
    """`A=1 command`: what is set for this command alone."""
    ends = next((at for at, word in enumerate(command.words) if not ASSIGNED.match(word.text)), len(command.words))
    return command.words[:ends]


def _variable(script: Script, name: str, word: Word, exported: bool) -> Unread:
    value = "…" if SECRET.search(name) else word.text.partition("=")[2]
    inner = "" if word.items is None else f"({' '.join(one.text for one in word.items)})"
    code = f"{'export ' if exported else ''}{name}={script.shown(value + inner)[:200]}"
    why = f"YAML sets no environment: {PLACE}" if exported else "a variable of the script, put in where it is certain"
    return Unread(line=word.line, code=" ".join(code.split()), why=why)


def _beside(script: Script, starts: Sequence[_Start], first: _Start) -> list[str]:
    """Notes about words that are no engine's."""
    notes: list[str] = []
    words = [word.text for word in first.before if not ASSIGNED.match(word.text)]
    if around := [*words, *first.command.aside]:
        notes.append(f"the shell's, and not the engine's: {script.shown(' '.join(around))}")
    known = [start.command for start in starts] or [first.command]
    others: dict[str, list[str]] = {}
    for command in script.commands:
        rest = command.words[len(_leading(command)) :]
        if rest and not command.assigns and not any(command is one for one in known):
            others.setdefault(script.shown(rest[0].text).split("\n")[0][:40], []).append(str(rest[0].line))
    if others:
        listed = "; ".join(f"{name} (line {', '.join(lines)})" for name, lines in others.items())
        notes.append(f"other commands of {script.name} are not read: {listed}")
    return notes


def _configured(words: Sequence[Word], given: _Options, folder: Path) -> dict[str, Any]:
    """What the file of `--config FILE` says, which lies beside; a file anywhere else is not opened."""
    for at, word in enumerate(words):
        name, _, value = word.text.partition("=")
        value = value or "".join(one.text for one in words[at + 1 : at + 2])
        if name != "--config" or GAP.search(value):
            continue
        path, code = folder / value, f"--config {value}"
        outside = Path(value).is_absolute() or not path.resolve().is_relative_to(folder.resolve())
        if outside or not path.is_file():
            why = "only a file beside it is read" if outside else f"there is no such file beside {given.script.name}"
            given.unread.append(Unread(line=word.line, code=code, why=why))
            continue
        data = load_yaml(path)
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: options of an engine are wanted, name: value.")
        given.notes.append(f"{code} is read, too")
        return {str(key).replace("-", "_"): inner for key, inner in cast("dict[Any, Any]", data).items()}
    return {}


# Its options.


@define
class _Options:
    script: Script
    data: dict[str, Any] = field(factory=dict[str, Any])
    configured: dict[str, Any] = field(factory=dict[str, Any])
    notes: list[str] = field(factory=list[str])
    unread: list[Unread] = field(factory=list[Unread])

    def take(self, words: Sequence[Word]) -> None:
        """Parts (`--a.b 1`) replace the whole (`--a '{"b": 1}'`), as in vLLM, whichever stands first; what a file says
        stands before all words."""
        parts: dict[str, dict[str, Any]] = {}
        self.data |= self.configured
        for option, values in self._grouped(words):
            path = _path(option.text)
            if len(path) > DEEPEST:
                raise ConfigError(
                    f"{self.script.name}: {self.script.shown(option.text)[:60]} has more than {DEEPEST} parts."
                )
            value = self._value(option.text, values)
            if len(path) > 1:
                _put(parts.setdefault(path[0], {}), path[1:], value)
            elif path[0] != "config" or not self.configured:
                self._once(*self._meant(path[0], value))
        for key, value in parts.items():
            if isinstance(self.data.get(key), dict):
                self.notes.append(f"{key} is given as a whole and by parts: vLLM takes the parts alone")
                del self.data[key]
            self._once(SHORT["cc"] if key == SHORT["O"] else key, value)
        self.data = self._known(self.data)

    def _meant(self, key: str, value: Any) -> tuple[str, Any]:
        """`-O '{…}'` is a configuration, `--no-x` says that x is false, and a number alone was a level."""
        if key == SHORT["O"] and isinstance(value, dict):
            return SHORT["cc"], value
        if key == SHORT["cc"] and type(value) is int and 0 <= value <= 3:
            self._line(f"{key}={value}", f"a number alone is a level of vLLM up to 0.11, which is mode={value} since")
            return key, {"level": value}
        return (key.removeprefix("no_"), False) if value is True and key.startswith("no_") else (key, value)

    def _once(self, key: str, value: Any) -> None:
        if key in self.data:
            self.notes.append(f"--{key.replace('_', '-')} is given twice: the last counts")
        self.data[key] = "…" if SECRETS.search(key) else value

    def _line(self, code: str, why: str) -> None:
        self.unread.append(Unread(line=0, code=" ".join(self.script.shown(code).split()), why=why))

    def _value(self, option: str, values: Sequence[Word]) -> Any:
        """An option alone is true; several words are a list; a name that ends in + takes a list with commas."""
        where = f"{self.script.name}: {option.split('=')[0][:60]}"
        if option.split("=")[0].endswith("+"):
            return [self._plain(part, where) for word in values for part in word.text.split(",")]
        read = [self._plain(word.text, where) for word in values]
        return True if not read else read[0] if len(read) == 1 else read

    def _plain(self, word: str, where: str) -> Any:
        """A word as vLLM reads it: JSON, or the text that it is."""
        if word[:1] in "{[" and word:
            return plain_yaml(word, where)
        if NUMBER.fullmatch(word):
            return int(word) if re.fullmatch(r"-?\d{1,18}", word) else float(word)
        return WORDS.get(word.lower(), word)

    def _grouped(self, words: Sequence[Word]) -> Iterator[tuple[Word, list[Word]]]:
        """(an option as it stands, its values); the words before the first are the model."""
        option, values = Word(f"--{MODEL}", 0), list[Word]()
        for word in words:
            if not word.text.startswith("-") or NUMBER.fullmatch(word.text) or word.text == "-":
                self._belongs(word, option, values)
                continue
            if values or option.line:
                yield option, values
            name, equals, value = word.text.partition("=")
            option, values = word, []
            if equals:
                option, values = evolve(word, text=f"{name}="), [evolve(word, text=value)]
            elif re.fullmatch(r"-O\d", word.text):
                option, values = evolve(word, text="-O="), [evolve(word, text=word.text[2:])]
        if values or option.line:
            yield option, values

    def _belongs(self, word: Word, option: Word, values: list[Word]) -> None:
        """One more word of an option, or a line where the option can have no such word."""
        key = ".".join(_path(option.text))
        gap = bool(GAP.fullmatch(word.text))
        full = bool(values) and (option.text.endswith("=") or values[0].text[:1] == "{" or (gap and key not in LISTS))
        if key in FLAGS or (full and option.line):
            where = f"it stands behind {self.script.shown(option.text).rstrip('=')}, which takes no word more"
            self._line(word.text, f"{where}, and may be more than one" if gap else where)
        else:
            values.append(word)

    def _known(self, data: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        """What holds no gap; each that does is a line."""
        found: dict[str, Any] = {}
        for key, value in data.items():
            path = f"{at}{key}"
            if isinstance(value, dict) and not GAP.search(str(key)):
                found[key] = self._known(cast("dict[str, Any]", value), f"{path}.")
            elif gaps := GAP.findall(f"{path} {shown(value)}"):
                asked = [self.script.expansions[int(number)] for number in gaps]
                literal = all(one.literal for one in asked)
                why = ", and in single quotes a shell leaves it as it stands" if literal else ""
                texts = ", ".join(dict.fromkeys(one.text for one in asked))
                why = f"{texts} is not known here{why}: the recipe says what holds without"
                self._line(f"{path}={shown(value)}", why)
            else:
                found[key] = value
        return found


def _path(option: str) -> list[str]:
    """`--compilation-config.pass_config.x=` is [compilation_config, pass_config, x]: dashes are those of the first."""
    first, *rest = option.rstrip("=").rstrip("+").lstrip("-").split(".")
    return [SHORT.get(first, first.replace("-", "_")), *rest]


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *groups, name = path
    for group in groups:
        inner = tree.setdefault(group, {})
        tree = cast("dict[str, Any]", inner) if isinstance(inner, dict) else tree
    known: Any = tree.get(name)
    tree[name] = [*cast("list[Any]", known), *value] if isinstance(known, list) and isinstance(value, list) else value
