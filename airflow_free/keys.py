"""Keys of results: equal keys, equal result. Reads no git.

A key that leaves something out gives a wrong answer; one that holds too much costs a second run. So everything goes in
that may change a result: the values read, versions, the device, threads, the source code. The git commit is not there:
it changes with every word of documentation and says nothing about an edited working tree.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from airflow_free.errors import InvalidRequest, unknown
from airflow_free.stage import Stage

KEY_FORMAT = 1
"""Grows when a key is put together in another way, so that old records are not found any more."""

NOT_SOURCE = frozenset({"__pycache__", ".git", ".mypy_cache", ".ruff_cache"})
NOT_SOURCE_ENDINGS = frozenset({".pyc", ".pyo", ".tmp"})


def plain(value: Any, where: str = "") -> Any:
    """`value` as JSON knows it: attrs values become mappings, tuples lists, paths text. Anything else is refused."""
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        return value
    if kind is dict or isinstance(value, Mapping):  # before the other questions: a key asks this of thousands of values
        return {str(name): plain(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, bool | str | int) and not isinstance(value, Enum):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest(f"{value} has no place in a key or a record @ {where.lstrip('.') or 'the value'}.")
        return value
    if isinstance(value, Enum):
        return plain(value.value, where)
    if isinstance(value, Path):
        return str(value)
    if attrs.has(type(value)):
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in attrs.fields(type(value))}
    if isinstance(value, set | frozenset):
        return sorted((plain(item, where) for item in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
    raise InvalidRequest(f"a {type(value).__name__} cannot be written as JSON @ {where.lstrip('.') or 'the value'}.")


def canonical(value: Any) -> str:
    """One text for equal plain values.

    # Note [Mappings keep their order in a key]
    The order of `passes` is the order in which they run, so `{a, b}` and `{b, a}` must not share a key. Sorting
    everything but that one field would be right until the next ordered mapping; keeping the order costs at most a
    second run of the same thing. What has no order (versions, code, device) is sorted where the key is made.
    """
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """sha256 of the canonical text, 64 hexadecimal digits."""
    return _digest_of_plain(plain(value))


def _digest_of_plain(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def code_digests(
    packages: Iterable[str] = (),
    files: Iterable[Path | str] = (),
    remembered: MutableMapping[str, str] | None = None,
) -> dict[str, str]:
    """{what: sha256 of its source}: packages and modules by dotted name, a user's files by their file name.

    `code_digests(["bakery.stages"], ["/home/a/recipe.py"])` gives {"bakery.stages": …, "recipe.py": …}. Where
    the code lies does not matter, what it says does. Modules are found, not imported (only their parents are).
    `remembered` holds digests of packages from an earlier call, and gets the others.
    """
    digests = {} if remembered is None else remembered
    found: dict[str, str] = {}
    for name in packages:
        if name not in digests:
            digests[name] = _tree_digest(_place_of(name))
        found[name] = digests[name]
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise InvalidRequest(f"the source file {path} is gone; the result depends on it.")
        label, number = path.name, 2
        while label in found:
            label, number = f"{path.name}#{number}", number + 1
        found[label] = _tree_digest(path)
    return found


def _place_of(module: str) -> Path:
    """The file of a module, the folder of a package."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise InvalidRequest(f"no module named '{module}'; its source is part of a key.")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec.origin is None:
        raise InvalidRequest(f"module '{module}' has no source file; its source is part of a key.")
    return Path(spec.origin)


def _tree_digest(place: Path) -> str:
    if place.is_file():
        return hashlib.sha256(place.read_bytes()).hexdigest()
    inside = {
        file.relative_to(place).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in place.rglob("*")
        if file.is_file()
        and file.suffix not in NOT_SOURCE_ENDINGS
        and not NOT_SOURCE.intersection(file.relative_to(place).parts)
    }
    return digest(sorted(inside.items()))


@frozen(kw_only=True)
class Ingredients:
    """Everything that the keys of one experiment are made of."""

    values: Mapping[str, Any] = field(converter=plain)
    """The experiment; a stage's key holds the fields that it reads."""
    outside: frozenset[str] = frozenset()
    """Dotted paths of values that decide no result and are in no key: what something is called, say."""
    versions: Mapping[str, str]
    device: Mapping[str, str]
    """The target's identity, and the settings of threads that a worker of this process finds."""
    code: Mapping[str, str]

    @property
    def key(self) -> str:
        """The key of the whole experiment."""
        return _digest_of_plain([KEY_FORMAT, _without(self.values, self.outside), *self._context()])

    def keys(self, order: Sequence[Stage[Any]]) -> dict[str, str]:
        """{stage: key} of stages in running order (`StageGraph.order`)."""
        keys: dict[str, str] = {}
        values, context = _without(self.values, self.outside), self._context()
        for stage in order:
            read = {path: _read(values, path, stage.name) for path in sorted(stage.reads)}
            needed = {need: keys[need] for need in sorted(stage.needs)}
            keys[stage.name] = _digest_of_plain([KEY_FORMAT, stage.name, read, needed, *context])
        return keys

    @property
    def context(self) -> dict[str, Mapping[str, str]]:
        """What the keys hold beside the experiment itself: of the machine and of the code."""
        return {"versions": self.versions, "device": self.device, "code": self.code}

    def _context(self) -> list[Any]:
        return [sorted(mapping.items()) for mapping in self.context.values()]


def _without(values: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """`_without({"a": {"b": 1, "c": 2}}, ["a.c"])` is `{"a": {"b": 1}}`; a path that is not there takes nothing."""
    for path in paths:
        first, _, rest = path.partition(".")
        if first in values:
            inner = values[first]
            left = {name: value for name, value in values.items() if name != first or rest}
            values = {**left, first: _without(inner, [rest])} if rest and isinstance(inner, Mapping) else left
    return values


def _read(values: Mapping[str, Any], path: str, stage: str) -> Any:
    value: Any = values
    for part in path.removesuffix("?").split("."):
        if not isinstance(value, Mapping) or part not in value:
            if path.endswith("?"):
                return None
            choices = list(value) if isinstance(value, Mapping) else []
            raise InvalidRequest(unknown("field", path, choices, where=f"reads of stage '{stage}'"))
        value = value[part]
    return value
