"""The one door to what records graphs and replays them: an installed plug-in, or none.

Without one a graph runs as the passes left it. Here stand the protocol, the values that both sides need, and how the
plug-in is found (entry-point group `npucompose.recorders`). Knows neither torch nor a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from attrs import frozen

from npucompose.errors import CaptureError
from npucompose.packages import distribution, pip_line
from npucompose.registry import Registry
from npucompose.results.graphs import Partition
from npucompose.schema.experiment import Partial
from npucompose.vendor.compiler import CompilerOptions

if TYPE_CHECKING:
    from torch import fx

    from npucompose.schema.cost_table import CostTable

NAME = "replay"
MISSING = f"{distribution(NAME)} is not installed: {pip_line(NAME)}"

# What a graph is lowered from, and what comes of it.


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
    counted: Any = None
    """The recorder's own: numbers of what was compiled that `graph_module` does not have."""
    constants: Any = None
    """The recorder's own: what the graph was compiled for beside its inputs; None where nothing can change."""
    at_once: bool = False
    """Record every signature when it first comes, as far as the target's limit goes (`Backend.records_at_once`)."""
    only_watched: bool = False
    """Record the whole graph only in calls that are watched (`Backend.records_only_watched`)."""
    eager_at_hand: bool = False
    """Whether the caller takes RunAsEager for an answer."""
    written: frozenset[int] | None = None
    """Inputs that are written; None: the graph says so."""
    recorded: Callable[[Any, Sequence[Any]], None] | None = None
    """Called with each recording that was made by running the graph, and with the inputs of that run."""


class RunAsEager(Exception):
    """Signal of a call that Dynamo's graph alone, called as it is, does as eager does it; nothing has run.

    It goes through AOTAutograd's wrapper to the caller that takes it (`LowerRequest.eager_at_hand`).
    """


class Captured(Protocol):
    """A recording with its static buffers, good for one signature."""

    def replay(self, *inputs: Any) -> list[Any]: ...

    def facts(self) -> Mapping[str, Any]: ...


class Lowered(Protocol):
    """What a target made of a graph: called with a *list* of inputs (boxed), returns the list of outputs."""

    @property
    def captured(self) -> Sequence[Captured]:
        """All recordings, of the parts too where the graph is cut."""
        ...

    def __call__(self, inputs: list[Any]) -> list[Any]: ...


@runtime_checkable
class Partitioned(Protocol):
    """A graph of which some parts may run as they are."""

    def partition(self) -> Partition: ...


Span = tuple[int, int]
"""(first byte, the one after the last)."""


@frozen(kw_only=True)
class PlannedRecording:
    """The memory of one recording, which is not made."""

    spans: tuple[Span, ...]
    """Of the blocks in its arena."""
    own_bytes: int
    """Results and constants, which lie in no arena."""


# Calls of recordings without torch.compile around them.

Outputs = Literal["reuse", "keep"]
"""What the next call of a handle does to results of earlier ones that are still held."""


class Handle(Protocol):
    """`handle(*args, **kwargs)` is the call it was made of, for arguments of the same structure, shapes and numbers.

    Raises SignatureError for others, in another mode of autograd or autocast, and where a tensor that a module keeps
    was replaced by another.
    """

    @property
    def captured(self) -> Captured: ...

    @property
    def unwatched(self) -> int:
        """How many tensors that it holds stand where it does not look: another in their place goes unnoticed."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def inputs_of(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the recording is replayed with for these arguments: they and what is held, parameters above all."""
        ...


class FrozenWeights(Protocol):
    """Over the weights that graphs of one backend have as constants."""

    def watch(self, graph_module: fx.GraphModule) -> Any:
        """Over those of one graph of Dynamo's; None where it has none."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """Records graphs and replays them. A plug-in registers a value of this kind; importing that loads no torch."""

    def device(self, target: Any) -> Any:
        """What records for a target (`targets.recorded.DeviceRecorder`); for one that is not its own, what compiles
        through Inductor."""
        ...

    def frozen_weights(self, policy: str, *, shared: bool = False) -> FrozenWeights:
        """For the graphs of one backend, or `shared` by those of several."""
        ...

    def freezing_while_tracing(self, compiled: Callable[..., Any], weights: FrozenWeights) -> Callable[..., Any]:
        """`compiled`, called in such a way that Dynamo makes constants of the weights that it meets."""
        ...

    def detach_call(
        self,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        model: Callable[..., Any] | None = None,
        outputs: Outputs = "reuse",
    ) -> Handle:
        """Make the call (through torch.compile, with these arguments) and a handle of it; the tensors of `model` are
        watched. Raises CaptureError when the call ran none or several graphs, or ran one without a recording."""
        ...

    def call_and_detach(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        model: Callable[..., Any] | None = None,
        outputs: Outputs = "reuse",
    ) -> tuple[Any, Handle | CaptureError]:
        """The result of `run(*args, **kwargs)`, made once through torch.compile, with a handle of it or why there is
        none. Raises what the call itself raises."""
        ...

    def recapturing(
        self, compiled: Callable[..., Any], *, model: Callable[..., Any], outputs: Outputs = "reuse"
    ) -> Callable[..., Any]:
        """`compiled`, called by the handle of each signature, which is made where there is none."""
        ...

    def is_watched(self) -> bool:
        """Whether calls of this thread are made for the sake of their recordings."""
        ...

    def held_bytes(self, recordings: Sequence[PlannedRecording], *, shared: bool) -> int:
        """What they hold together, made in this order: in one arena, or each in its own."""
        ...

    def native_replayer(self) -> str:
        """`built: /home/ada/.cache/…`, `not built: …`, `failed: …`, `impossible: …`. Builds nothing."""
        ...

    def kernel_times(self) -> Sequence[CostTable]:
        """The tables of times of kernels that are kept and hold here; measures nothing."""
        ...

    def calibrate(self) -> bool:
        """Measure them anew; False where there is no native replayer, whose times they are."""
        ...


RECORDERS: Registry[Recorder] = Registry(kind="recorder", base=Recorder, group="npucompose.recorders", values=True)


@cache
def installed() -> Recorder | None:
    """None where no package records."""
    return RECORDERS.get(NAME) if NAME in RECORDERS else None


def needed(what: str) -> Recorder:
    """The installed one; CaptureError where there is none: `what` cannot be done."""
    found = installed()
    if found is None:
        raise CaptureError(f"{what}: {MISSING}.")
    return found
