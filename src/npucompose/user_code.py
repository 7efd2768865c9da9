"""Code that a configuration names, `module:function`: found without being imported, imported when it is called for.

Who asks for it must have made sure that the person trusts it (trust=true on the command line).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError

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

    def source_files(self) -> tuple[str, ...]:
        """The file of the module, found without importing anything."""
        spec = self._spec()
        return (spec.origin,) if spec is not None and spec.has_location and spec.origin else ()

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

    def failed(self, what: str, error: BaseException) -> ConfigError:
        """What the user's own code raised, in one sentence."""
        return ConfigError(f"{self.option} '{self.name}': {what} {type(error).__name__}: {error}")

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
