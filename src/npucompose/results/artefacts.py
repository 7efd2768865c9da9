"""What files say that somebody else's runtime wrote: error codes, a captured graph, times of kernels.

Readers (entry point `npucompose.readers`) make these, and `explain`, `profile` and `compare-dumps` use them; nothing
here knows a form of a file, and `read_artefact` asks the installed readers one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from npucompose.errors import ConfigError
from npucompose.npu.static_graph.records import UNKNOWN, Certainty, SinkingFacts
from npucompose.registry import Registry


@frozen(kw_only=True)
class CaptureError:
    """One error code of the runtime in a log, at one line of the model.

    Standing of the rule: `proven` where the code has no other rule, or none of a capture; `derived` where the call that
    failed, the runtime's words or the line of the model choose it; `unknown` where several rules remain, and `rule` is
    null, and of a code that no public list has.
    """

    code: int | None
    """Null where torch_npu refuses before the runtime is asked."""
    said: str
    """The runtime's own words, or its call: `rtMemcpy: the current capture mode does not support this operation`."""
    means: str | None = None
    """The code's name in the runtime's public lists, and what the runtime prints of it; null: no list has it."""
    rule: str | None
    """A row of capture/rules.yaml."""
    among: tuple[str, ...]
    """The rules that remain; one where `rule` is known, none where the code is no capture's."""
    fitting: tuple[str, ...] = ()
    """The first of them: the call that failed is theirs."""
    forbids: tuple[str, ...]
    """What each of them forbids, one clause."""
    fixes: tuple[str, ...]
    source: str | None = None
    """`model.py:12 in forward: n = x.item()`: the innermost line that is neither torch's nor Python's; null where the
    log has no traceback."""
    standing: Certainty
    times: int
    """Lines of the log that have the code."""
    line: int
    """The first of them, from 1."""
    after: int | None = None
    """An error that the same process had before: this one may be no more than its consequence."""
    remark: str | None = None
    """That another CANN wrote the log than the one whose lists are known here."""
    threads: tuple[str, ...] = ()
    """Public threads and documents about the rules that remain."""


@frozen(kw_only=True)
class CapturedStream:
    """One stream of a captured graph."""

    stream: int
    tasks: int
    kinds: Mapping[str, int] = field(factory=dict[str, int])
    """{task type: how many}."""
    continues: int | None = None
    """The stream that goes on where this one's queue ended (STREAM_ACTIVE)."""


@frozen(kw_only=True)
class CapturedEvent:
    """One event of a captured graph, or a word of memory that streams wait for."""

    event: str
    recorded: tuple[int, ...] = ()
    """Streams that record it."""
    waited: tuple[int, ...] = ()
    """Streams that wait for it."""


@frozen(kw_only=True)
class CapturedKernel:
    """One kernel of a captured graph."""

    stream: int
    task: int
    name: str
    """As the runtime has it."""
    operator: str
    """Its operator type, as far as the name shows it: `MatMulV3`."""
    computes: str | None = None
    """The operator of torch that it computes, without namespace and overload; None where none is known."""
    blocks: int | None = None
    """Cores that it takes."""
    node: str | None = None
    """The node of the FX listing that it belongs to, where the names allow that."""
    source: str | None = None
    """The node's line of the model."""


@frozen(kw_only=True)
class CapturedGraph:
    """One graph as torch_npu's debug_dump wrote it."""

    name: str
    model: int | None
    streams: tuple[CapturedStream, ...]
    events: tuple[CapturedEvent, ...] = ()
    kernels: tuple[CapturedKernel, ...] = ()
    remarks: tuple[str, ...] = ()
    """What of it is odd or costs something, a sentence each."""

    @property
    def tasks(self) -> int:
        return sum(one.tasks for one in self.streams)


@frozen(kw_only=True)
class ListedNode:
    """A node of an FX graph as torch prints it."""

    name: str
    operator: str
    """`aten.mm.default`."""
    dtype: str | None = None
    """Of its result, as torch names it: `bfloat16`; None where the listing does not say."""
    source: str | None = None
    """`model.py:12 in forward: y = a @ b`."""


@frozen(kw_only=True)
class FxListing:
    """An FX graph that was printed (`GraphModule.print_readable`), one of a row of them where each pass left one."""

    name: str
    """Of the file: `012_aot_forward_graph_after_view_to_reshape.txt`."""
    nodes: tuple[ListedNode, ...]


@frozen(kw_only=True)
class KernelTime:
    """One row of a profile: a kernel that ran."""

    line: int
    type: str
    """The operator type, as GE and CANN name it."""
    operator: str | None
    """The operator of torch that it computes, without namespace and overload (`mm`); None where none is known."""
    core: str
    """`AI_CORE`, `AI_VECTOR_CORE`, `MIX_AIC`, …"""
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    input_bytes: tuple[int, ...]
    """Of an element of each input; 0 where the type is unknown."""
    output_bytes: tuple[int, ...]
    us: float


@frozen(kw_only=True)
class KernelTimes:
    """A profile's kernels, in its order."""

    name: str
    rows: tuple[KernelTime, ...]
    left_out: Mapping[str, int] = field(factory=dict[str, int])
    """{why: rows}."""


@runtime_checkable
class Tensors(Protocol):
    """A dump of one step: which operators it has, and their tensors, loaded one by one."""

    @property
    def name(self) -> str: ...

    @property
    def operators(self) -> tuple[DumpedOperator, ...]: ...

    def load(self, value: DumpedValue) -> Any:
        """A torch.Tensor on the CPU; ConfigError where the file is not to be read."""
        ...


@frozen(kw_only=True)
class DumpedValue:
    """One input or result of an operator in a dump."""

    slot: str
    """`0`, `1.0`, or the name of a keyword."""
    file: str | None = None
    """Inside the dump; None where it has statistics alone."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    statistics: Mapping[str, float] = field(factory=dict[str, float])
    """{Max, Min, Mean, Norm: value}."""


@frozen(kw_only=True)
class DumpedOperator:
    """One call of an operator in a dump, in the order in which they ran."""

    name: str
    """A node's, or msprobe's: `mm_3`, `Functional.linear.5.forward`."""
    operator: str
    """`aten.mm.default`, `linear`, `Linear`."""
    inputs: tuple[DumpedValue, ...] = ()
    outputs: tuple[DumpedValue, ...] = ()
    source: str | None = None
    """The line of the model, where the dump has it."""


@runtime_checkable
class Read(Protocol):
    """What a reader makes of a file has to have; the other attributes of FileFacts may be left out."""

    @property
    def sinking(self) -> SinkingFacts: ...


NO_VERDICT = SinkingFacts.from_verdicts(fx_graph=UNKNOWN, ge_graph=UNKNOWN, ge_build=UNKNOWN)
"""Of a file that is not about sinking."""


@frozen(kw_only=True)
class FileFacts:
    """What one file says, from any reader."""

    sinking: SinkingFacts = NO_VERDICT
    errors: tuple[CaptureError, ...] = ()
    captured: tuple[CapturedGraph, ...] = ()
    listings: tuple[FxListing, ...] = ()
    times: KernelTimes | None = None
    tensors: Tensors | None = None

    @classmethod
    def from_read(cls, read: Read) -> FileFacts:
        more = {name: getattr(read, name) for name in _MORE if hasattr(read, name)}
        return cls(sinking=read.sinking, **more)


_MORE = ("errors", "captured", "listings", "times", "tensors")


def listed_nodes(listings: tuple[FxListing, ...]) -> Iterator[ListedNode]:
    """Every node once; of several listings the last one's."""
    found = {node.name: node for listing in listings for node in listing.nodes}
    yield from found.values()


OUR_READER = "artefacts"
"""Of the package that few need: named where none is installed."""
READERS: Registry[FunctionType] = Registry(
    kind="reader of logs and dumps", base=FunctionType, group="npucompose.readers", values=True
)
"""Functions of a path whose result has a `sinking`, and may have the other attributes of FileFacts; ConfigError for a
file that is not of theirs."""


def read_artefact(path: Path | str) -> FileFacts:
    """What the file says to the first reader that knows its form."""
    problems: list[str] = []
    for name in READERS.names() or (OUR_READER,):
        try:
            return FileFacts.from_read(READERS.get(name)(path))
        except ConfigError as refused:
            problems += refused.problems
    raise ConfigError(*problems)
