"""What TorchAir made of each FX graph, compiled or not, and which calls ran eagerly: counted at its own classes."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from attrs import define


@define
class Running:
    """Counts of this process, over all its graphs."""

    graphs: int = 0
    """Graphs that TorchAir took."""
    uncompiled: int = 0
    """Those of which it made no graph of its own: it calls the FX graph, or what dumps it operator by operator."""
    runs: int = 0
    """Calls of all of them."""
    calls: int = 0
    """Calls of graphs that can be captured."""
    replays: int = 0
    """Those that replayed a capture; the others ran the FX graph eagerly."""


@cache
def counts_of(package: str) -> Running:
    """Of `torchair` or `npugraph_ex`."""
    return Running()


@cache
def watch(package: str) -> None:
    """Count what `package` makes and runs, from now on, once in a process."""
    counts = counts_of(package)
    compiler = importlib.import_module(f"{package}.npu_fx_compiler")
    base = importlib.import_module(f"{package}.core._concrete_graph").ConcreteGraphBase
    graph = importlib.import_module(f"{package}._acl_concrete_graph.acl_graph").AclGraph
    made, entered = compiler._CompiledFxGraph.__init__, compiler._CompiledFxGraph.__call__
    called, run = graph.__call__, graph.run

    def watched_init(self: Any, runner: Any, config: Any = None) -> None:
        counts.graphs += 1
        loaded = config is None  # by cache_compile: the code that was generated of a compiled graph
        counts.uncompiled += not loaded and not isinstance(runner, base)
        made(self, runner, config)

    def watched_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.runs += 1
        return entered(self, *args, **kwargs)

    def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.calls += 1
        return called(self, *args, **kwargs)

    def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.replays += 1
        return run(self, *args, **kwargs)

    compiler._CompiledFxGraph.__init__, compiler._CompiledFxGraph.__call__ = watched_init, watched_entry
    graph.__call__, graph.run = watched_call, watched_run
