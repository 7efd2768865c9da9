"""Files that may be a stranger's: text within a limit, and YAML as plain data and nothing else: null, true, numbers,
text, lists and mappings, built from the parser's events.

A general loader trusts what it reads: the last of two equal keys wins, aliases grow, nesting ends the stack. Here every
such text is a ConfigError that names the line, before anything of it is used.
"""

from __future__ import annotations

import io
import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml
from attrs import define, field, frozen
from yaml.constructor import SafeConstructor

from airflow_free.foreign_files import UnusableFile, read_bytes
from npucompose.errors import ConfigError

TAG = "tag:yaml.org,2002:"
MERGE = TAG + "merge"
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that act on a terminal, a file name or the order of the text around them."""
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE", re.IGNORECASE)
"""Names of variables whose values are nobody's business: they reach no worker and no configuration by themselves."""
Resolvers = Mapping[str, Sequence[tuple[str, "re.Pattern[str]"]]]
"""{first character: (tag, pattern) in the order asked}: PyYAML's own form."""


def variable(name: str) -> str | None:
    """The value of an environment variable that a person lets a configuration read; None where it is not set.

    ConfigError for one that must not be written into a report.
    """
    if not name.isidentifier():
        raise ConfigError(f"--env {name} is no name of an environment variable: write --env once for each.")
    if SECRET.search(name):
        raise ConfigError(
            f"--env {name}: its name says that it is a secret, and what a configuration holds is written into the "
            "run's folder, its report and its recipe."
        )
    return os.environ.get(name)


@frozen(kw_only=True)
class InputLimits:
    most_values: int
    """Scalars, lists and mappings, each alias counted with all that it stands for."""
    deepest: int
    aliases: bool
    """Whether `&name`, `*name` and the merge key `<<` are read."""


def plain_data(text: str, name: str, limits: InputLimits, resolvers: Resolvers | None = None) -> Any:
    """The data in a text, which is called `name` where it is refused.

    `plain_data("a: 1\\na: 2\\n", "x.yaml", …)` raises "x.yaml:2: the key 'a' stands in line 1 already."
    """
    builder = _Builder(name, limits, resolvers or yaml.SafeLoader.yaml_implicit_resolvers)
    try:
        for event in yaml.parse(text, Loader=yaml_loader()):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        why = " ".join(str(error.problem or error).split())
        at_a_tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
        tab = ": a tab, where YAML takes spaces" if at_a_tab else ""
        raise ConfigError(f"{name}{line} is not YAML: {why}{tab}.") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}.") from error
    return builder.root


@cache
def yaml_loader() -> Any:
    """For plain data: libyaml's, where PyYAML was built with it, which is ten times as fast."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@define
class _Open:
    """A list or mapping that is being read."""

    anchor: str | None
    before: int
    """How many values were read before it."""
    values: list[Any] = field(factory=list[Any])


@define
class _OpenMapping(_Open):
    made: dict[Any, Any] = field(factory=dict[Any, Any])
    lines: dict[Any, int] = field(factory=dict[Any, int])
    merged: list[Mapping[Any, Any]] = field(factory=list[Mapping[Any, Any]])
    key: Any = None
    awaits: str = "key"

    def whole(self) -> dict[Any, Any]:
        """Keys of its own win over merged ones, earlier merged ones over later ones."""
        return {**ChainMap(*map(dict, self.merged)), **self.made} if self.merged else self.made


class _Builder:
    """Takes one event after the other. Not recursive: how deep a text nests is a matter of `limits` alone."""

    def __init__(self, name: str, limits: InputLimits, resolvers: Resolvers) -> None:
        self.name, self.limits, self.resolvers = name, limits, resolvers
        self.root: Any = None
        self.documents = 0
        self.total = 0
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int]] = {}

    def take(self, event: Any) -> None:
        anchor = getattr(event, "anchor", None)
        if anchor is not None and not self.limits.aliases:
            self._refuse(event, "anchors and aliases are not read")
        if isinstance(event, yaml.ScalarEvent):
            self._count()
            self._put(event, self._scalar(event), anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.open.pop()
            value = done.whole() if isinstance(done, _OpenMapping) else done.values
            self._put(event, value, done.anchor, self.total - done.before)
        elif isinstance(event, yaml.AliasEvent):
            if anchor not in self.anchors:
                self._refuse(event, f"*{anchor} stands for nothing that was read before it")
            value, size = self.anchors[anchor]
            self._count(size)
            self._put(event, value)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self._refuse(event, "a second document begins; a file holds one")

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        raise ConfigError(f"{self.name}:{event.start_mark.line + 1}: {problem}.")

    def _count(self, more: int = 1) -> None:
        self.total += more
        if self.total > self.limits.most_values:
            also = ", its aliases written out" if self.limits.aliases else ""
            raise ConfigError(f"{self.name} holds more than {self.limits.most_values:,} values{also}.")

    def _begin(self, event: Any) -> None:
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, TAG + ("map" if mapping else "seq")):
            self._refuse(event, f"the tag {event.tag} is not read: plain values only")
        if len(self.open) >= self.limits.deepest:
            self._refuse(event, f"nested more than {self.limits.deepest} deep")
        self.open.append((_OpenMapping if mapping else _Open)(event.anchor, self.total))
        self._count()

    def _put(self, event: Any, value: Any, anchor: str | None = None, size: int = 1) -> None:
        """Where it belongs, and where an alias finds it."""
        if anchor is not None:
            self.anchors[anchor] = "<<" if value is _MERGE else value, size
        top = self.open[-1] if self.open else None
        if isinstance(top, _OpenMapping) and top.awaits == "key":
            self._put_key(event, top, value)
            return
        value = "<<" if value is _MERGE else value
        if top is None:
            self.root = value
        elif isinstance(top, _OpenMapping):
            self._put_value(event, top, value)
        else:
            top.values.append(value)

    def _put_key(self, event: Any, top: _OpenMapping, key: Any) -> None:
        if key is _MERGE:
            if not self.limits.aliases:
                self._refuse(event, "the merge key << is not read")
            top.awaits = "merged"
            return
        if isinstance(key, (list, dict)):
            self._refuse(event, "a key must be a plain value, not a list or a mapping")
        if key in top.lines:
            self._refuse(event, f"the key {key!r} stands in line {top.lines[key]} already")
        top.key, top.awaits = key, "value"
        top.lines[key] = event.start_mark.line + 1

    def _put_value(self, event: Any, top: _OpenMapping, value: Any) -> None:
        if top.awaits == "value":
            top.made[top.key] = value
        else:
            parts: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parts):
                self._refuse(event, "the merge key << takes a mapping or a list of mappings")
            top.merged += parts
        top.awaits = "key"

    def _scalar(self, event: Any) -> Any:
        """The value of a scalar."""
        text, tag = event.value, event.tag
        if found := UNSEEN.search(text):
            self._refuse(
                event, f"the text holds {ascii(found[0])[1:-1]}, which is not printed but acts on what shows it"
            )
        if tag is None and event.implicit[0]:
            tag = self._implied(text)
        elif tag is None or tag == "!":
            return text
        make = _MADE.get(tag)
        if make is None:
            self._refuse(event, f"the tag {tag} is not read: plain values only")
        try:
            return make(text)
        except (ValueError, OverflowError, KeyError) as error:
            what = repr(text) if len(text) <= 40 else f"{text[:12]}… ({len(text):,} characters)"
            raise ConfigError(
                f"{self.name}:{event.start_mark.line + 1}: {what} is no {tag.removeprefix(TAG)} that can be held."
            ) from error

    def _implied(self, text: str) -> str:
        for tag, pattern in self.resolvers.get(text[:1], ()):
            if tag in _MADE and pattern.match(text):
                return tag
        return TAG + "str"


_MERGE = object()


def _by_pyyaml(kind: str) -> Callable[[str], Any]:
    """YAML's own rules for a scalar: `0x10`, `1_000`, `.inf`, `yes`."""
    constructor = SafeConstructor()
    make = getattr(constructor, f"construct_yaml_{kind}")
    return lambda text: make(yaml.ScalarNode(TAG + kind, text))


_MADE: dict[str, Callable[[str], Any]] = {
    TAG + "str": lambda text: text,
    TAG + "null": lambda text: None,
    MERGE: lambda text: _MERGE,
    **{TAG + kind: _by_pyyaml(kind) for kind in ("bool", "int", "float")},
}
"""What plain text may mean. A date stays text."""


MOST_BYTES = 16 * 2**20
"""Of YAML: a recipe with 20,000 samples of three candidates has about one MiB."""
RECIPE = InputLimits(most_values=500_000, deepest=32, aliases=False)


def read_text(path: Path, most_bytes: int = MOST_BYTES, *, named: bool = False) -> str:
    """What is in a file; ConfigError says why it is not read. Nothing is read of what is too large, no file, or a link
    that a person has not `named` on the command line."""
    try:
        data = read_bytes(path, most_bytes, named=named)
    except UnusableFile as error:
        raise ConfigError(f"{path} {error}.") from None
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error}.") from error


def load_yaml(path: Path) -> Any:
    """The data in a file; ConfigError says, with the line, why it is not read."""
    return plain_yaml(read_text(path), str(path))


def plain_yaml(text: str, name: str) -> Any:
    """The data in a text that is called `name` where it is refused."""
    return plain_data(text, name, RECIPE)
