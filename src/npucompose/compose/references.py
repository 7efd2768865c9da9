"""`${benchmark.warmup}`: one value of a tree is that of another. No resolver is ever called.

OmegaConf would call one for `${oc.env:HOME}`, and would put together its name from other values: here a reference
names a place in the tree and can do no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError

PLAIN = re.compile(r"\$\{[A-Za-z_][\w-]*(\.[\w-]+)*\}")
"""What a file may say that did not come with the package: one place, whole, not put together from others."""
MOST_VALUES = 200_000
"""Of a tree, each reference counted with all that it stands for."""
MOST_TEXT = 1_000_000
_NEXT = re.compile(r"(\\*)\$\{")
_KEY = re.compile(r"[^\s.:\[\]{}$'\",\\]+")


@frozen(kw_only=True)
class Reference:
    """What stands between `${` and `}`: text, and references inside it (`${model.${name}}`)."""

    parts: tuple[str | Reference, ...]


def resolved(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The tree with every reference replaced by what it names.

    `resolved({"a": {"b": 3}, "c": "${a.b}", "d": "${a.b} of ${a.b}"})` has c 3 and d "3 of 3". ConfigError for one
    that names nothing, itself, or more than a tree may hold.
    """
    return _Tree(tree).root()


def escaped(tree: Any) -> Any:
    """The same values for OmegaConf, which then finds nothing to resolve in them."""
    if isinstance(tree, Mapping):
        return {key: escaped(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [escaped(value) for value in tree]
    return _NEXT.sub(lambda found: f"{found[1] * 2}\\${{", tree) if isinstance(tree, str) else tree


def parsed(text: str) -> tuple[str | Reference, ...]:
    """Text and references in turns; `\\${` is the text `${`. ValueError says why it is not understood."""
    parts, end = _parts(text, 0, inside=False)
    assert end == len(text)
    return parts


def _parts(text: str, at: int, *, inside: bool) -> tuple[tuple[str | Reference, ...], int]:
    """Up to the end, or `inside` of a reference to its `}`; and where that is."""
    parts: list[str | Reference] = []
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
            inner, close = _parts(text, at, inside=True)
            parts.append(_reference(inner))
            at = close + 1


def _reference(parts: tuple[str | Reference, ...]) -> Reference:
    if any(isinstance(part, str) and ":" in part for part in parts):
        raise ValueError("it uses a resolver; a value may only refer to another one: ${model.size}")
    return Reference(parts=parts)


class _Tree:
    """Follows references, each place once."""

    def __init__(self, raw: Mapping[Any, Any]) -> None:
        self.raw = raw
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
            parts = [part for part in parsed(value) if part != ""]
        except ValueError as error:
            raise ConfigError(f"{_dotted(path)}={value[:60]!r}: {error}.") from None
        if len(parts) == 1 and isinstance(parts[0], Reference):
            return self._named(parts[0], path)
        return self._text(parts, path), 1

    def _sized(self, value: Any, inside: Any, path: tuple[Any, ...]) -> tuple[Any, int]:
        total = 1 + sum(size for _, size in inside)
        if total > MOST_VALUES:
            raise ConfigError(f"{_dotted(path)} holds more than {MOST_VALUES:,} values, its references followed.")
        return value, total

    def _text(self, parts: Any, path: tuple[Any, ...]) -> str:
        texts, length = [], 0
        for part in parts:
            value = self._named(part, path)[0] if isinstance(part, Reference) else part
            if isinstance(value, (dict, list)):
                raise ConfigError(f"{_dotted(path)} is text and refers to a mapping or a list inside of it.")
            texts.append(str(value))
            length += len(texts[-1])
            if length > MOST_TEXT:
                raise ConfigError(f"{_dotted(path)} has more than {MOST_TEXT:,} characters, its references followed.")
        return "".join(texts)

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
        raise ConfigError(f"{_dotted(path)} refers to ${{{text}}}, and there is no such value.")


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
