"""A target that notes what it is handed, and a backend and graphs for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import fx

from npucompose.recorder import LowerRequest
from npucompose.results.graphs import Partition
from npucompose.results.measured import CallStatistics
from npucompose.schema.capabilities import Capabilities
from npucompose.targets import compilers
from npucompose.targets.backend import Backend
from npucompose.targets.base import ModeSupport, Target
from npucompose.vendor.compiler import CompilerOptions

MODE = "reduce-overhead"
CUT = Partition(segments=2)


class Lowered(SimpleNamespace):
    """What the target below makes of a graph: it adds up what it is given."""

    _boxed_call = True
    statistics = CallStatistics(hits=2, eager=1)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return list(self.request.graph_module(*inputs))

    def recordings(self) -> list[Any]:
        return []

    def partition(self) -> Partition:
        return CUT


@frozen(kw_only=True)
class Noting(Target):
    """Hands the request back, lowered."""

    name: ClassVar[str] = "noting"
    modes: ClassVar[Mapping[str, ModeSupport]] = {MODE: ModeSupport(), "eager": ModeSupport()}
    fusing: bool = False

    def capabilities(self, mode: str) -> Capabilities:
        return Capabilities(target=self.name, mode=mode)

    def identity(self) -> Mapping[str, str]:
        return {"device": "none"}

    def support(self, mode: str) -> ModeSupport:
        return ModeSupport(fuses=self.fusing and mode == MODE, compiles=mode != "eager")

    def common_memory(self) -> Any:
        return ["memory"]

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        return CUT if mode == MODE else None

    def lower(self, request: LowerRequest) -> Any:
        return Lowered(request=request, captured=[])


class Passes:
    """A pipeline that notes what it is given and has one record for each name."""

    def __init__(self, *names: str) -> None:
        self.names, self.given = names, list[Any]()

    def __call__(self, graph_module: fx.GraphModule, inputs: Any, constants: Any = None) -> Any:
        self.given.append((graph_module, inputs, constants))
        return self.names


def backend(target: Target | None = None, *, mode: str = MODE, **more: Any) -> Backend:
    named: dict[str, Any] = {"pre": Passes(), "post": Passes(), "options": CompilerOptions(), **more}
    return Backend(target=target or Noting(), mode=mode, compiler=compilers.compiled, **named)


def dynamos(*sources: Any) -> fx.GraphModule:
    """A graph as Dynamo makes it: a placeholder for each source, and their sum."""
    graph = fx.Graph()
    given = [graph.placeholder(f"l_{k}_") for k in range(len(sources))]
    for node, source in zip(given, sources, strict=True):
        if source is not None:
            node.meta["grapharg"] = SimpleNamespace(source=source)
    total = given[0]
    for node in given[1:]:
        total = graph.call_function(torch.add, (total, node))
    graph.output((graph.call_function(torch.neg, (total,)),))
    return fx.GraphModule({}, graph)


def named(name: str) -> Any:
    return SimpleNamespace(name=name)


def begun(made: Backend, at: float = 0.0) -> Backend:
    made.entered_at.append(at)
    return made
