"""The account of one FX graph that a backend compiled: what it was, what the passes made of it, and its times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field
from torch import fx

from npucompose.graphs import Snapshot
from npucompose.graphs.effects import orders_streams
from npucompose.graphs.inherited import PATTERNS, Inherited, seen_in
from npucompose.npu.capture.counts import CaptureCounts, CaptureWay, counts_of
from npucompose.npu.static_graph.records import Failure
from npucompose.recorder import Partitioned
from npucompose.results.graphs import Outside, Partition, PassRecord, Winner
from npucompose.results.streams import Decision, StreamAssignment
from npucompose.streams import judged, plan_of

if TYPE_CHECKING:
    from torch import fx

    from npucompose.npu.static_graph.facts import FxFacts
    from npucompose.recorder import Lowered


@define(kw_only=True, eq=False)
class Compilation:
    """One FX graph: what it was, what the passes made of it, how long each part took (seconds).

    What only a reader wants is worked out when it is read: nobody who calls the model waits for it.
    """

    id: str
    before: Snapshot
    graph_module: fx.GraphModule
    """As the passes left it; a compiler that is not ours changes it further (`settle`)."""
    after: Snapshot | None = None
    """None as long as passes are at work."""
    decision: Decision | None = None
    """What the pass stream_plan did with this graph and why; None where it did not run."""
    passes: tuple[PassRecord, ...] = ()
    aot_s: float = 0.0
    passes_s: float = 0.0
    backend_s: float = 0.0
    account_s: float = 0.0
    """What keeping this record took."""
    way: CaptureWay = CaptureWay()
    """How an NPU's compiler would capture it."""
    sources: tuple[str | None, ...] = ()
    """Torch's names of what Dynamo's graph is called with: `L['x']`."""
    in_dynamo: tuple[Inherited, ...] = ()
    """Torch's own errors that Dynamo's graph shows."""
    lowered: Lowered | None = None
    planned: Partition | None = None
    """How it would be cut, where it is read and not lowered."""
    refused_on_npu: tuple[Outside, ...] = ()
    """What an NPU's compiler takes no graph for, where people try here what is to run there."""
    failure: Failure | None = None
    """Why the vendor's compiler did not take the graph."""
    winners: Mapping[str, Winner] = field(factory=dict)
    """{part: who computes it and what was measured}, of what could be computed in several ways."""
    code: Mapping[str, Any] | None = None
    """By what a later process finds the code that Inductor made of it, in plain values; None where it cannot."""

    def settle(self) -> None:
        """Work out now what is read off the graph: somebody else is going to change it."""
        _ = self.plan, self.judged, self.facts, self.counts

    @cached_property
    def plan(self) -> StreamAssignment:
        """The streams and events that stand in the graph; no streams where nothing says so."""
        graph = self.graph_module.graph
        planned = self.decision is not None or orders_streams(graph)
        return plan_of(graph) if planned else StreamAssignment()

    @cached_property
    def judged(self) -> Decision | None:
        """The decision about the plan; of streams of the model's own code, whether they are safe."""
        return self.decision or (judged(self.graph_module.graph) if self.plan.nodes else None)

    @cached_property
    def facts(self) -> FxFacts:
        """What the diagnosis of sinking reads."""
        from npucompose.npu.static_graph.reading import read

        return read(self.graph_module.graph, self.id, self.sources)

    @cached_property
    def counts(self) -> CaptureCounts:
        """What one capture of the graph takes of an NPU, foretold."""
        return counts_of(self.graph_module.graph, self.way)

    @cached_property
    def inherited(self) -> tuple[Inherited, ...]:
        """What torch itself computes otherwise than eager, in one mode or another."""
        return (*self.in_dynamo, *seen_in(self.graph_module.graph, PATTERNS))

    @property
    def partition(self) -> Partition | None:
        """How the graph was cut into recordings so far; None where it is not recorded, or nobody knows."""
        return self.lowered.partition() if isinstance(self.lowered, Partitioned) else self.planned

    @property
    def moving_inputs(self) -> list[int]:
        """The inputs of Dynamo's graph that are no parameters or buffers."""
        return [i for i, source in enumerate(self.sources) if kind_of_source(source) is None]

    @property
    def nodes_after(self) -> int:
        return 0 if self.after is None else len(self.after.lines)

    @property
    def text_after(self) -> str:
        return "" if self.after is None else self.after.text


# Where the inputs of a graph of Dynamo's come from, by torch's names of them.


def kind_of_source(source: str | None) -> Literal["parameter", "buffer"] | None:
    """Of which kind the module's tensor is that torch names so; None: it is none."""
    if source is None or not source.endswith("]"):
        return None
    return "parameter" if "._parameters[" in source else "buffer" if "._buffers[" in source else None


def sources_of(dynamo: fx.GraphModule) -> Iterator[str | None]:
    """Of each input of Dynamo's graph what torch calls it; None where that is not known."""
    for node in dynamo.graph.nodes:
        if node.op == "placeholder":
            source: Any = getattr(node.meta.get("grapharg"), "source", None)
            name: Any = getattr(source, "name", None)
            yield None if name is None else str(name() if callable(name) else name)
