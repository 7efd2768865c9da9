"""What is found by name: built in, or an installed package's entry point. Imports a thing when it is asked for.

A name that is built in asks nobody else, so that no installed package is looked at before one is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import frozen

from npucompose.errors import ConfigError, unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
OURS = "npucompose"


def package_of(point: EntryPoint) -> str:
    """The distribution that brings it; without one its import package."""
    return point.dist.name if point.dist is not None else point.value.partition(":")[0].partition(".")[0]


def installed(group: str) -> Mapping[str, EntryPoint]:
    """{name: entry point} of a group, over every installed distribution."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


@frozen(kw_only=True)
class Registry(Generic[T]):
    """`TARGETS.get("cpu")` is the class CpuTarget; an unknown name is a ConfigError that lists what there is."""

    kind: str
    base: type[Any]
    """What is registered is a class below it, or with `values` one of it."""
    group: str
    """The entry-point group in which installed packages register theirs; a built-in name cannot be taken."""
    built_in: tuple[tuple[str, Any], ...] = ()
    """(name, "module:attribute"), or (name, value)."""
    values: bool = False

    def names(self) -> tuple[str, ...]:
        """Every name that `get` takes: built-in ones first, then those of installed packages."""
        return tuple(dict.fromkeys([*dict(self.built_in), *sorted(self._installed())]))

    def get(self, name: str, where: str = "") -> T:
        """The class or value; only its own file is imported. `where` is the path in the configuration, for errors."""
        if (place := dict(self.built_in).get(name)) is not None:
            return _imported(place) if isinstance(place, str) else place
        point = self._installed().get(name)
        if point is None:
            raise ConfigError(unknown(self.kind, name, self.names(), where))
        return self._loaded(name, point)

    def every(self) -> dict[str, T]:
        """{name: class or value} of all that can be imported; what cannot be is an error of who asks for it."""
        found: dict[str, T] = {}
        for name in self.names():
            with suppress(ConfigError):
                found[name] = self.get(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in dict(self.built_in) or name in self._installed()

    def package(self, name: str) -> str:
        """The distribution that a name comes from: `npucompose` for what is built in."""
        point = None if name in dict(self.built_in) else self._installed().get(name)
        return OURS if point is None else package_of(point)

    def _loaded(self, name: str, point: EntryPoint) -> T:
        where = f"{self.kind} '{name}' ({point.value})"
        try:
            found: Any = point.load()
        except Exception as error:  # whatever a foreign module raises at import is the user's news
            raise ConfigError(f"{where} could not be imported: {type(error).__name__}: {error}.") from error
        base = f"{self.base.__module__}.{self.base.__name__}"
        if self.values and not isinstance(found, self.base):
            raise ConfigError(f"{where} is no {base}.")
        if not self.values and not (isinstance(found, type) and issubclass(found, self.base)):
            raise ConfigError(f"{where} is not a subclass of {base}.")
        return cast("T", found)

    def _installed(self) -> Mapping[str, EntryPoint]:
        return installed(self.group)


def _imported(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
