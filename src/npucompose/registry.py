"""Classes by registered name: built in, or an installed package's entry point. Imports a class when it is asked for."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from attrs import frozen

from npucompose.errors import ConfigError, unknown

T = TypeVar("T")


@frozen(kw_only=True)
class Registry(Generic[T]):
    """`TARGETS.get("cpu")` is the class CpuTarget; an unknown name is a ConfigError that lists what there is."""

    kind: str
    base: type[T]
    group: str
    """The entry-point group in which installed packages register theirs; a built-in name cannot be taken."""
    built_in: tuple[tuple[str, str], ...]
    """(name, "module:Class")."""

    def names(self) -> tuple[str, ...]:
        """Every name that `get` takes: built-in ones first, then those of installed packages."""
        return tuple(dict.fromkeys([name for name, _ in self.built_in] + sorted(self._installed())))

    def get(self, name: str, where: str = "") -> type[T]:
        """The class; only its own file is imported. `where` is the path in the configuration, for the error."""
        for built_in, place in self.built_in:
            if built_in == name:
                module, _, attribute = place.partition(":")
                return getattr(importlib.import_module(module), attribute)
        point = self._installed().get(name)
        if point is None:
            raise ConfigError(unknown(self.kind, name, self.names(), where))
        return self._loaded(name, point)

    def _loaded(self, name: str, point: EntryPoint) -> type[T]:
        where = f"{self.kind} '{name}' ({point.value})"
        try:
            found: Any = point.load()
        except Exception as error:  # whatever a foreign module raises at import is the user's news
            raise ConfigError(f"{where} could not be imported: {type(error).__name__}: {error}.") from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ConfigError(f"{where} is not a subclass of {self.base.__module__}.{self.base.__name__}.")
        return cast("type[T]", found)

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}
