"""npucompose: YAML in, a verified compiled graph out. Importing it loads no torch; the first use does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npucompose import moved
from npucompose.version import __version__

if TYPE_CHECKING:
    from npucompose.api import backend, compile, materialize
    from npucompose.serving.generate import compile_config

moved.install()

__all__ = ["__version__", "backend", "compile", "compile_config", "materialize"]


def __getattr__(name: str) -> Any:
    if name in ("backend", "compile", "materialize"):
        from npucompose.machine import full_collections_put_off

        with full_collections_put_off():
            from npucompose import api
        return getattr(api, name)
    if name == "compile_config":
        from npucompose.serving.generate import compile_config

        return compile_config
    raise AttributeError(f"module 'npucompose' has no attribute {name!r}")
