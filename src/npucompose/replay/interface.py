"""What goes into a recording and what comes out, whatever device makes it: requests, recordings, watchers. No torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from attrs import define, field, frozen

from npucompose.results.graphs import Partition
from npucompose.schema.experiment import Partial
from npucompose.schema.options import option
from npucompose.vendor.compiler import CompilerOptions

if TYPE_CHECKING:
    from torch import fx


ReplayExecutor = Literal["auto", "native", "portable"]
WhenFull = Literal["eager", "replace"]
WhenNew = Literal["earned", "at_once"]
PoolOf = Literal["model", "graph"]


def when_full_option() -> Any:
    return option(
        "eager",
        "a new signature beyond the capture limit: runs eagerly, or replaces the recording used longest ago",
        choices=("eager", "replace"),
    )


def when_new_option() -> Any:
    return option(
        "earned",
        "a new signature after the first two of a graph: recorded when calls have earned it, or at once",
        choices=("earned", "at_once"),
    )


def pool_option() -> Any:
    return option(
        "model",
        "whose recordings compute in the same memory, one at a time: of all graphs of a model, or of each graph alone",
        choices=("model", "graph"),
    )


@frozen
class CacheOptions:
    """TorchAir's options that mean the same here: how many signatures are captured, whether outputs are cloned."""

    capture_limit: str
    clone_output: str

    @property
    def supported(self) -> frozenset[str]:
        return frozenset((self.capture_limit, self.clone_output))


CACHE_OPTIONS: Mapping[str, CacheOptions] = {
    "reduce-overhead": CacheOptions("debug.aclgraph.static_capture_size_limit", "debug.aclgraph.enable_output_clone"),
    "npugraph_ex": CacheOptions("npugraph_ex.capture_limit", "npugraph_ex.clone_output"),
}
"""Of the modes that record."""


@frozen(kw_only=True, eq=False)
class LowerRequest:
    """One finished FX graph of one compilation, and what lowering needs to know about it."""

    mode: str
    graph_module: fx.GraphModule
    example_inputs: Sequence[Any]
    """Fake tensors and SymInts, one for each placeholder."""
    static_inputs: frozenset[int]
    """Placeholders whose address does not change from call to call (parameters and buffers)."""
    options: CompilerOptions
    memory: Any = None
    """What `Target.common_memory` made for the backend of this graph."""
    partial: Partial = "cut"
    """What becomes of a graph that cannot be recorded whole."""
    at_once: bool = False
    """Record every signature when it first comes, as far as the target's limit goes (`Backend.records_at_once`)."""


class Captured(Protocol):
    """A recording with its static buffers, good for one signature (design: CapturedGraph)."""

    def replay(self, *inputs: Any) -> list[Any]: ...

    def facts(self) -> Mapping[str, Any]: ...


class Recording(Protocol):
    """What a cache holds, whatever device made it."""

    seconds: float

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]: ...

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None: ...

    def facts(self) -> Mapping[str, Any]: ...


class Lowered(Protocol):
    """What a target made of a graph: called with a *list* of inputs (boxed), returns the list of outputs."""

    @property
    def captured(self) -> Sequence[Captured]: ...

    def __call__(self, inputs: list[Any]) -> list[Any]: ...


@runtime_checkable
class Partitioned(Protocol):
    """A graph of which some parts may run as they are."""

    def recordings(self) -> Sequence[Captured]: ...

    def partition(self) -> Partition: ...


@frozen(eq=False)
class SeenCall:
    """A call of one graph: its recording (None: it ran as it is), inputs and results."""

    recording: Recording | None
    inputs: list[Any]
    outputs: list[Any]
    capture_limit: int
    cut: str = ""
    """How the graph is cut, whose parts are seen too; empty for a graph that is not."""


@define(eq=False)
class _Watcher:
    thread: int = field(factory=threading.get_ident)
    calls: list[SeenCall] = field(factory=list)


watchers: list[_Watcher] = []
"""Of all threads: where there is none, a call has nothing to note."""


@contextlib.contextmanager
def watching() -> Iterator[list[SeenCall]]:
    """The calls of graphs that this thread makes inside, in order."""
    watcher = _Watcher()
    watchers.append(watcher)
    try:
        yield watcher.calls
    finally:
        watchers.remove(watcher)


def is_watched() -> bool:
    """Whether somebody watches the calls of this thread: they are made for the sake of their recordings."""
    return any(watcher.thread == threading.get_ident() for watcher in watchers)


def note(call: SeenCall) -> None:
    for watcher in watchers:
        if watcher.thread == threading.get_ident():
            watcher.calls.append(call)
