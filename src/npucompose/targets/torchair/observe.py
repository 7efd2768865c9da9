"""Watches the genuine package at the border of libge: every graph that is loaded, with its options."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(kw_only=True, eq=False)
class Loaded:
    """A GE graph as it was handed over."""

    name: str
    graph: Any
    """The GraphDef, a copy."""
    options: dict[str, str]


LOADED: list[Loaded] = []
_WATCHED: list[Any] = []


def watch_ge() -> None:
    """Note every TorchNpuGraph.load of this process in LOADED; the second call does nothing."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef  # pyright: ignore[reportMissingImports]
    from torchair.core._backend import TorchNpuGraph  # pyright: ignore[reportMissingImports]

    if TorchNpuGraph in _WATCHED:
        return
    _WATCHED.append(TorchNpuGraph)
    genuine = TorchNpuGraph.load

    def load(self: Any, ge_graph: Any, options: Any = None) -> Any:
        model = ModelDef()
        model.ParseFromString(ge_graph.SerializeToString())
        given = {str(key): str(value) for key, value in (options or {}).items()}
        LOADED.append(Loaded(name=str(ge_graph.name), graph=model.graph[0], options=given))
        return genuine(self, ge_graph, options)

    TorchNpuGraph.load = load


def global_options() -> dict[str, str]:
    """What TorchAir initialised GE with in this process; {} before it did."""
    from torchair.core import _backend  # pyright: ignore[reportMissingImports]

    recorded = _backend._GLOBAL_COMPILE_OPTION
    return {str(key): str(value) for key, value in (recorded or {}).items()}
