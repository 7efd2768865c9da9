"""What is found by name: built in, an installed package's entry point, or a user's `module:function`. Imports a thing
when it is asked for.

A name that is built in asks nobody else, so that no installed package is looked at before one is needed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import frozen

from npucompose.errors import ConfigError, listed, shown_path, unknown, users_line
from npucompose.packages import extra_of, other_version

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
OURS = "npucompose"


def package_of(point: EntryPoint) -> str:
    """The distribution that brings it, `npucompose` for those of this repository; without one its import package."""
    if point.dist is None:
        return point.value.partition(":")[0].partition(".")[0]
    return OURS if extra_of(point.dist.name) is not None else point.dist.name


def installed(group: str) -> Mapping[str, EntryPoint]:
    """{name: entry point} of a group, over every installed distribution; what is installed meanwhile is found, too."""
    from importlib.metadata import entry_points

    return _installed(entry_points, group, tuple((place, _changed(place)) for place in sys.path))


@lru_cache(maxsize=128)
def _installed(find: Callable[..., Any], group: str, places: tuple[tuple[str, int], ...]) -> Mapping[str, EntryPoint]:
    """Of these folders, as long as nothing is added to them or taken away: it reads a file of every distribution."""
    return MappingProxyType({point.name: point for point in find(group=group)})


def _changed(place: str) -> int:
    """When an entry of a folder of sys.path was last made or removed."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


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
            return pkgutil.resolve_name(place) if isinstance(place, str) else place
        point = self._installed().get(name)
        if point is None:
            raise ConfigError(unknown(self.kind, name, self.names(), where))
        return self._loaded(name, point)

    def every(self, names: Iterable[str] | None = None) -> dict[str, T]:
        """{name: class or value} of all that can be imported, or of these names; the others are errors for who asks."""
        found: dict[str, T] = {}
        for name in self.names() if names is None else names:
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
        if point.dist is not None and (problem := other_version(point.dist.name, point.dist.version)):
            raise ConfigError(f"{where}: {problem}")
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


FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@frozen
class UserFunction:
    """`UserFunction("model.factory", "mymodel:make")`: mymodel.py lies in the working directory or on sys.path."""

    option: str
    """The option that names it, for errors."""
    name: str

    def check(self) -> None:
        """Raise ConfigError when the name has another form or there is no such module; imports nothing."""
        if not FORM.fullmatch(self.name):
            raise ConfigError(f"{self.option} is '{self.name}'; it needs the form module:function.")
        if self._spec() is None:
            raise ConfigError(
                f"{self.option} '{self.name}': there is no module '{self.module}' in the working directory "
                f"{os.getcwd()} nor on sys.path."
            )

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def file(self) -> str | None:
        """Of the module, found without importing anything."""
        spec = self._spec()
        return spec.origin if spec is not None and spec.has_location else None

    def source_files(self) -> tuple[str, ...]:
        """The file of the module, and those of a person's own modules that it imports; found by reading them.

        Its own are those that lie beside it: below the working directory, or in the same installed package.
        """
        if self.file is None:
            return ()
        root, top = Path(self.file), self.module.partition(".")[0]
        for _ in range(self.module.count(".") + 1 + (root.stem == "__init__")):
            root = root.parent
        inside = "" if root == Path.cwd() else top
        return tuple(dict.fromkeys((self.file, *sorted(map(str, _own_files(Path(self.file), root, inside))))))

    def load(self) -> Callable[..., Any]:
        """The function; ConfigError when importing raises or the module has no such function."""
        self.check()
        with working_directory_importable():
            try:
                module = importlib.import_module(self.module)
            except (Exception, SystemExit) as error:
                raise self.failed(f"importing '{self.module}' raised", error) from error
        function = getattr(module, self.name.partition(":")[2], None)
        if not callable(function):
            raise ConfigError(f"{self.option} '{self.name}': {module.__file__} has no such function.")
        return function

    def refuses(self, function: Callable[..., Any], *names: str) -> str | None:
        """Why a call with these arguments cannot bind, in one sentence with the line of the function; None: it can."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # built-in functions tell none
            return None
        try:
            signature.bind(*names)
        except TypeError as error:
            where = defined_at(function)
            return (
                f"{self.option} '{self.name}' is called as function({listed(names)}), and takes {signature}: "
                f"{error}{f' @ {where}' if where else ''}."
            )
        return None

    def failed(self, what: str, error: BaseException) -> ConfigError:
        """What the user's own code raised, in one sentence with their line."""
        where = users_line(error)
        said = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}".removesuffix(": ")
        return ConfigError(f"{self.option} '{self.name}': {what} {said}" + (f" @ {where}" if where else ""))

    def _spec(self) -> ModuleSpec | None:
        """What an import would find; importlib.util.find_spec alone would import the parents of a dotted name."""
        top, *parts = self.module.split(".")
        # The second finds what an import hook brings, such as a package installed in editable mode.
        spec = PathFinder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top)
        for part in parts:
            if spec is None or spec.submodule_search_locations is None:
                return None
            # By its last part: a folder without __init__.py would be sought in its parent, which is not imported.
            spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
        return spec


MOST_SOURCES = 1_000
"""Files of a person's own that are followed."""


def _own_files(file: Path, root: Path, inside: str) -> Iterator[Path]:
    """Every file below `root` that `file` imports, directly or not; only in the package `inside` where one is named."""
    seen: set[Path] = set()
    left = [file]
    while left and len(seen) < MOST_SOURCES:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        names = [name for name in _imported(one, root) if name.partition(".")[0] == inside or not inside]
        left += [found for name in names for found in _files_of(name, root)]


def _imported(file: Path, root: Path) -> Iterator[str]:
    """The names of modules that a file might import, absolute: `from . import a` in pkg/b.py is pkg and pkg.a."""
    try:
        tree = ast.parse(file.read_bytes()) if file.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # importing it will say why
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


def _files_of(name: str, root: Path) -> Iterator[Path]:
    """The files that an import of the name runs: of each package on the way, and of the module."""
    at = root
    for part in name.split("."):
        at = at / part
        yield from (one for one in (at / "__init__.py", at.with_suffix(".py")) if one.is_file())


@contextlib.contextmanager
def working_directory_importable() -> Iterator[None]:
    """The console script's sys.path has no working directory, which is where a user's module lies."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def defined_at(function: Callable[..., Any]) -> str | None:
    """`rewrites.py:6`; None of what is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
