"""A device that executes nothing and records what a device would be asked. For tests of everything above a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import frozen

from npucompose.recorder import Captured, Lowered, LowerRequest
from npucompose.schema.capabilities import Capabilities
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets.base import ModeSupport, Target, simulated_model, streams_of


class Tape:
    """One graph as a device would be asked for it: a list of "op -> name" lines, the streams and events included.

    Calling it returns uninitialised outputs of the right shapes: a null device has no numerics.
    """

    _boxed_call = True

    def __init__(self, request: LowerRequest) -> None:
        from torch import fx

        graph = request.graph_module.graph
        self.calls = [
            f"{node.target}({', '.join(map(str, node.args))}) -> {node.name}"
            for node in graph.nodes
            if node.op == "call_function"
        ]
        self.captured: list[Captured] = []
        self._outputs = [
            n.meta.get("val") if isinstance(n, fx.Node) else n
            for n in graph.output_node().args[0]  # type: ignore[union-attr]
        ]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        import torch

        inputs.clear()
        return [
            torch.empty([int(d) for d in v.shape], dtype=v.dtype) if isinstance(v, torch.Tensor) else v
            for v in self._outputs
        ]


@frozen(kw_only=True)
class NullDevice(Target):
    """Compiles for real (Dynamo, AOTAutograd, passes) and then only takes notes."""

    name: ClassVar[str] = "null_device"
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        GE: ModeSupport(),
        **dict.fromkeys((ACLGRAPH, NPUGRAPH_EX), ModeSupport(captures=True)),
        "eager": ModeSupport(compiles=False),
    }
    measures: ClassVar[bool] = False
    executes: ClassVar[bool] = False

    def capabilities(self, mode: str) -> Capabilities:
        captures, model = self.support(mode).captures, simulated_model(self.soc)
        return Capabilities(
            target=self.name, mode=mode, captures=captures, max_streams=streams_of(self.soc), device_model=model
        )

    def identity(self) -> Mapping[str, str]:
        return {"device": "none"}

    def lower(self, request: LowerRequest) -> Lowered:
        return Tape(request)
