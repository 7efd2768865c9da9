"""Who makes a callable of Dynamo's graph: the target itself, Inductor in a mode that fuses, else AOTAutograd alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from npucompose import recorder
from npucompose.targets.aot import only_read, through_aot

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.backend import Backend


@runtime_checkable
class CompilesGraphs(Protocol):
    """A target with a way of its own."""

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Dynamo's graph -> a callable."""
        ...


@runtime_checkable
class LoadsCode(Protocol):
    """A target for which code of an earlier process can be loaded."""

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """As `compile`, of a graph whose code an earlier process made (`Compilation.code`), without compiling anything;
        None where that cannot be."""
        ...


@runtime_checkable
class Decomposes(Protocol):
    """A target whose compiler takes operators apart before the passes see a graph."""

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """{operator: what AOTAutograd writes in its place}."""
        ...


def compiled(backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The `Compiler` of every backend: what its target makes of the graph; a backend that `reads_only` gets the graph
    as the passes left it."""
    target = backend.target
    if backend.reads_only:
        return only_read(backend, graph_module, example_inputs)
    if isinstance(target, CompilesGraphs):
        return target.compile(backend, graph_module, example_inputs)
    found = recorder.installed() if target.support(backend.mode).fuses else None
    if found is not None:
        return found.device(target).compile(backend, graph_module, example_inputs)
    return through_aot(backend, graph_module, example_inputs)


def decompositions(backend: Backend) -> Mapping[Any, Callable[..., Any]]:
    """{operator: what AOTAutograd writes in its place} before the passes see a graph of this backend; where Inductor
    calls AOTAutograd itself, what it writes in a graph that is only read."""
    target = backend.target
    if isinstance(target, Decomposes):
        return target.decompositions(backend)
    if not target.support(backend.mode).fuses:
        return {}
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()
