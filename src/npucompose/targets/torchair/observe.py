"""Watches the genuine package at the border of libge: every graph that is loaded or exported, with its options."""

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
    """Note every TorchNpuGraph.load and every export of this process in LOADED; the second call does nothing."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef  # pyright: ignore[reportMissingImports]
    from torchair.core import _torchair  # pyright: ignore[reportMissingImports]
    from torchair.core._backend import TorchNpuGraph  # pyright: ignore[reportMissingImports]

    if TorchNpuGraph in _WATCHED:
        return
    _WATCHED.append(TorchNpuGraph)
    load, export = TorchNpuGraph.load, _torchair.export

    def note(serialized: bytes, options: Any) -> None:
        model = ModelDef()
        model.ParseFromString(serialized)
        given = {str(key): str(value) for key, value in (options or {}).items()}
        LOADED.append(Loaded(name=str(model.graph[0].name), graph=model.graph[0], options=given))

    def watched_load(self: Any, ge_graph: Any, options: Any = None, **keywords: Any) -> Any:
        note(ge_graph.SerializeToString(), options)
        return load(self, ge_graph, options, **keywords)

    def watched_export(serialized: bytes, options: Any) -> Any:
        note(serialized, options)
        return export(serialized, options)

    TorchNpuGraph.load = watched_load
    _torchair.export = watched_export


def global_options() -> dict[str, str]:
    """What TorchAir initialised GE with in this process; {} before it did."""
    from torchair.core import _backend  # pyright: ignore[reportMissingImports]

    recorded = _backend._GLOBAL_COMPILE_OPTION
    return {str(key): str(value) for key, value in (recorded or {}).items()}
