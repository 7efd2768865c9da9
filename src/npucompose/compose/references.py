"""`${benchmark.warmup}`: one value of a tree is that of another. No resolver is ever called.

OmegaConf would call one for `${oc.env:HOME}`, and would put together its name from other values: here a reference
names a place in the tree and can do no more. Variables that `--env` names are the exception: `${oc.env:WIDTH}`, or
`${oc.env:WIDTH,64}` with what holds where it is not set, is then text of the person's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError

PLAIN = re.compile(r"\$\{[A-Za-z_][\w-]*(\.[\w-]+)*\}")
"""What a file may say that did not come with the package: one place, whole, not put together from others."""
MOST_VALUES = 200_000
"""Of a tree, each reference counted with all that it stands for."""
MOST_TEXT = 1_000_000
VARIABLE = re.compile(r"oc\.env:(?P<name>[A-Za-z_]\w*)(?:,(?P<default>[^${}]*))?")
FACTORY = "model.args."
"""Keys of which a factory's own default may be the value: it is read when the tree is complete, references included."""
WORDS = {"true": True, "false": False, "null": None}
Environment = Mapping[str, str | None]
"""{variable that may be read: its value, None where it is not set}."""
CLOSED: Environment = MappingProxyType({})
_NEXT = re.compile(r"(?<!\\)(\\*)\$\{")
_KEY = re.compile(r"[^\s.:\[\]{}$'\",\\]+")


@frozen(kw_only=True)
class Reference:
    """What stands between `${` and `}`: text, and references inside it (`${model.${name}}`)."""

    parts: tuple[Part, ...]


@frozen(kw_only=True)
class Variable:
    """`${oc.env:NAME}`, or with a default: `${oc.env:NAME,64}`."""

    name: str
    default: str | None


Part = str | Reference | Variable


def resolved(tree: Mapping[Any, Any], environment: Environment = CLOSED) -> dict[Any, Any]:
    """The tree with every reference replaced by what it names.

    `resolved({"a": {"b": 3}, "c": "${a.b}", "d": "${a.b} of ${a.b}"})` has c 3 and d "3 of 3". ConfigError for one
    that names nothing, itself, or more than a tree may hold. A variable alone is read as on a command line: 64 is a
    number; inside of a longer text it is text.
    """
    return _Tree(tree, environment).root()


def escaped(tree: Any) -> Any:
    """The same values for OmegaConf, which then finds nothing to resolve in them."""
    if isinstance(tree, Mapping):
        return {key: escaped(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [escaped(value) for value in tree]
    return _NEXT.sub(lambda found: f"{found[1] * 2}\\${{", tree) if isinstance(tree, str) else tree


def parsed(text: str, environment: Environment = CLOSED) -> tuple[Part, ...]:
    """Text and references in turns; `\\${` is the text `${`. ValueError says why it is not understood."""
    parts, end = _parts(text, 0, environment, inside=False)
    assert end == len(text)
    return parts


def reads_variables(value: Any, environment: Environment) -> bool:
    """Whether a leaf of a tree takes anything from the environment."""
    if isinstance(value, (list, Mapping)):
        inside = value.values() if isinstance(value, Mapping) else value
        return any(reads_variables(one, environment) for one in inside)
    parts = parsed(value, environment) if isinstance(value, str) and "${" in value else ()
    return any(isinstance(part, Variable) for part in parts)


def _parts(text: str, at: int, environment: Environment, *, inside: bool) -> tuple[tuple[Part, ...], int]:
    """Up to the end, or `inside` of a reference to its `}`; and where that is."""
    parts: list[Part] = []
    while True:
        found = _NEXT.search(text, at)
        close = text.find("}", at) if inside else -1
        if inside and close >= 0 and (found is None or close < found.start()):
            return (*parts, text[at:close]), close
        if found is None:
            if inside:
                raise ValueError("its ${ is not followed by a }")
            return (*parts, text[at:]), len(text)
        slashes = len(found[1])
        parts.append(text[at : found.start()] + "\\" * (slashes // 2))
        at = found.end()
        if slashes % 2:
            parts.append("${")
        else:
            inner, close = _parts(text, at, environment, inside=True)
            parts.append(_reference(inner, environment))
            at = close + 1


def _reference(parts: tuple[Part, ...], environment: Environment) -> Reference | Variable:
    asked = VARIABLE.fullmatch(parts[0]) if len(parts) == 1 and isinstance(parts[0], str) else None
    if asked is not None and asked["name"] in environment:
        return Variable(name=asked["name"], default=asked["default"])
    if any(isinstance(part, str) and ":" in part for part in parts):
        advice = f"; `--env {asked['name']}` on the command line lets it read that variable" if asked else ""
        raise ValueError(f"it uses a resolver; a value may only refer to another one: ${{model.size}}{advice}")
    return Reference(parts=parts)


class _Tree:
    """Follows references, each place once."""

    def __init__(self, raw: Mapping[Any, Any], environment: Environment) -> None:
        self.raw, self.environment = raw, environment
        self.done: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self.begun: list[tuple[Any, ...]] = []

    def root(self) -> dict[Any, Any]:
        try:
            return {key: self.at((key,))[0] for key in self.raw}
        except RecursionError:
            raise ConfigError("references lead from one to the next too often.") from None

    def at(self, path: tuple[Any, ...]) -> tuple[Any, int]:
        """(value, how many values it holds) of a place of the raw tree."""
        if path in self.done:
            return self.done[path]
        if path in self.begun:
            raise ConfigError(f"{_dotted(path)} refers to itself: {' -> '.join(map(_dotted, [*self.begun, path]))}.")
        self.begun.append(path)
        value = self.raw
        for key in path:
            value = value[key]
        found = self._value(value, path)
        self.begun.pop()
        self.done[path] = found
        return found

    def _value(self, value: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
        if isinstance(value, Mapping):
            items = {key: self.at((*path, key)) for key in value}
            return self._sized({key: one for key, (one, _) in items.items()}, items.values(), path)
        if isinstance(value, list):
            found = [self.at((*path, index)) for index in range(len(value))]
            return self._sized([one for one, _ in found], found, path)
        if not isinstance(value, str) or "${" not in value:
            return value, 1
        try:
            parts = [part for part in parsed(value, self.environment) if part != ""]
        except ValueError as error:
            raise ConfigError(f"{_dotted(path)}={value[:60]!r}: {error}.") from None
        if len(parts) == 1 and isinstance(parts[0], Reference):
            return self._named(parts[0], path)
        if len(parts) == 1 and isinstance(parts[0], Variable):
            return _scalar(self._text(parts, path)), 1
        return self._text(parts, path), 1

    def _sized(self, value: Any, inside: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
        total = 1 + sum(size for _, size in inside)
        if total > MOST_VALUES:
            raise ConfigError(f"{_dotted(path)} holds more than {MOST_VALUES:,} values, its references followed.")
        return value, total

    def _text(self, parts: Any, path: tuple[Any, ...]) -> str:
        texts, length = [], 0
        for part in parts:
            value = self._named(part, path)[0] if isinstance(part, Reference) else self._said(part, path)
            if isinstance(value, (dict, list)):
                raise ConfigError(f"{_dotted(path)} is text and refers to a mapping or a list inside of it.")
            texts.append(str(value))
            length += len(texts[-1])
            if length > MOST_TEXT:
                raise ConfigError(f"{_dotted(path)} has more than {MOST_TEXT:,} characters, its references followed.")
        return "".join(texts)

    def _said(self, part: str | Variable, path: tuple[Any, ...]) -> str:
        if isinstance(part, str):
            return part
        value = self.environment[part.name]
        if value is None and part.default is None:
            raise ConfigError(f"{_dotted(path)} reads the environment variable {part.name}, which is not set.")
        return value if value is not None else part.default or ""

    def _named(self, reference: Reference, path: tuple[Any, ...]) -> tuple[Any, int]:
        text = self._text(reference.parts, path).strip()
        return self._found(text, tuple(_keys(text, path)), path)

    def _found(self, text: str, keys: tuple[Any, ...], path: tuple[Any, ...]) -> tuple[Any, int]:
        """Step by step: a place on the way may be a reference itself."""
        node: Any = self.raw
        for at, key in enumerate(keys):
            if isinstance(node, str) and "${" in node:
                node = self.at(keys[:at])[0]
                for left in keys[at:]:
                    node = node[self._held(node, left, text, path)]
                return node, _count(node)
            keys = (*keys[:at], self._held(node, key, text, path), *keys[at + 1 :])
            node = node[keys[at]]
        return self.at(keys)

    def _held(self, node: Any, key: Any, text: str, path: tuple[Any, ...]) -> Any:
        """The key as `node` has it: 0 for the "0" of a list."""
        if isinstance(node, Mapping) and key in node:
            return key
        if str(key).isdecimal() and len(str(key)) < 10:
            number = int(key)
            if isinstance(node, Mapping) and number in node:
                return number
            if isinstance(node, list) and number < len(node):
                return number
        advice = (
            f" A default of the factory's own is known only after that: write {text}=VALUE here or in the model's file."
            if text.startswith(FACTORY)
            else ""
        )
        raise ConfigError(f"{_dotted(path)} refers to ${{{text}}}, and there is no such value.{advice}")


def _scalar(text: str) -> Any:
    """As the text would be read on the command line: a number, true, false, null, or text."""
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d*\.\d+|\d+(?=e))(e[+-]?\d+)?", text) and math.isfinite(float(text)):
        return float(text)
    return WORDS.get(text, text)


def _count(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inside))


def _keys(text: str, path: tuple[Any, ...]) -> Iterator[Any]:
    """`a.b[0]` from the root; `.b` beside the value, `..b` one mapping higher."""
    dots = len(text) - len(text.lstrip("."))
    if dots:
        yield from path[: len(path) - dots] if dots <= len(path) else ()
    keys = re.sub(r"\[([^\[\]]*)\]", r".\1", text[dots:]).split(".")
    for key in keys:
        if not _KEY.fullmatch(key):
            raise ConfigError(f"{_dotted(path)} refers to ${{{text[:60]}}}, which is no place like ${{model.size}}.")
        yield key


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
