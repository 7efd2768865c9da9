"""A captured graph as values: pieces of memory, tensors laid over them, a flat list of kernel calls, and their threads.

Knows how a plan is written down, not how it was recorded (`capture`) or how it is run (`executor`).

# Note [Steps on several threads]
Streams come from the graph; the order between steps is derived here from the memory that they really touch, so that
whatever the recorder did (values in place, constants made anew, outputs copied out) is covered. Every step waits only
for earlier ones of the list, so no two threads can wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeGuard

import torch
from attrs import Factory, define, field, frozen
from torch import fx
from torch._ops import OpOverload

from npucompose.machine import usable_cores
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.streams.events import fewest_events
from npucompose_replay.operands import StorageLayout, span_of, traits_of

RootKind = Literal["input", "attribute", "constant", "pool", "output", "fresh"]


@define(eq=False, kw_only=True)
class Root:
    """One storage: everything that aliases it has the same root. `written` says whether a step changes it."""

    kind: RootKind
    nbytes: int
    tensor: torch.Tensor | None = None
    """Constants and attributes: what lies there. Inputs: a plain alias of what was given at capture."""
    index: int = -1
    """Of an input: which one."""
    written: bool = False
    first: int = -1
    last: int = -1
    """The first and the last step that touches it."""

    @property
    def contents(self) -> torch.Tensor:
        """`tensor`, of an input, an attribute or a constant that no step writes."""
        assert self.tensor is not None, f"a root of kind {self.kind} has no memory"
        return self.tensor


@frozen(eq=False)
class PlanSlot:
    """A tensor whose place is fixed: kernels read it and write it there on every replay."""

    root: Root
    layout: StorageLayout


@frozen
class Register:
    """A value that a kernel makes anew on every replay (`fresh`); `root` keeps what it may alias alive."""

    number: int


Form = Any
"""A tensor without memory (on meta) that says how one lies, a list of these, or None."""


@frozen(kw_only=True, eq=False)
class RestOfGraph:
    """The graph that was recorded, from `node` on, and what it needs of the values before."""

    module: fx.GraphModule
    node: fx.Node
    values: Mapping[fx.Node, Any]
    """A slot, a register, a `SameAsInput`, a `ViewOfInput` or a plain value, or tuples and lists of these."""


Operand = Any
"""A Slot, a Register, a plain value, or a list of these: what stands in `Step.args`."""


@frozen(kw_only=True, eq=False)
class Step:
    """One kernel call; `args` in the order of the schema, all of them, `results` the registers it fills.

    A slot among the results is where the value of an operator that makes it anew is to lie: who replays may have the
    kernel compute it there, and else copies it.
    """

    op: OpOverload
    args: tuple[Operand, ...]
    results: tuple[PlanSlot | Register | tuple[Register, ...] | None, ...] = ()
    name: str = ""
    """Of the FX node that it was; "" for what the recording adds by itself."""
    stream: str = DEFAULT_STREAM
    after: tuple[Step, ...] = ()
    """Steps that the graph wants done before, beside those whose memory this one touches."""
    reads: tuple[PlanSlot | Register, ...] = ()
    """Beside `args`, of a step that waits for a collective: what that one reads until then."""
    returns: tuple[Form, ...] = ()
    """How each result lay at capture, of an operator that is not torch's own: replays look whether it still does."""
    rest: RestOfGraph | None = None
    """Where the call goes on if one of `returns` lies otherwise; None where that is an error."""
    operands: tuple[PlanSlot | Register, ...] = field(
        init=False, default=Factory(lambda step: step._operands(), takes_self=True)
    )
    """What `args`, `reads` and `rest` touch."""
    made: tuple[PlanSlot | Register, ...] = field(
        init=False, default=Factory(lambda step: tuple(leaves(step.results)) if step.results else (), takes_self=True)
    )
    """What `results` fill."""

    def _operands(self) -> tuple[PlanSlot | Register, ...]:
        return (*leaves(self.args), *self.reads, *(() if self.rest is None else leaves(self.rest.values.values())))

    def touched(self) -> Iterator[tuple[PlanSlot | Register, bool]]:
        """(operand or result, whether it is written), without what only `rest` needs."""
        written = traits_of(self.op).written
        for position, value in enumerate(self.args):
            yield from ((leaf, position in written) for leaf in leaves((value,)))
        yield from ((leaf, False) for leaf in self.reads)
        yield from ((leaf, True) for leaf in self.made)


class UnsupportedStep(Exception):
    """A step that an executor cannot run; the text says which and why."""


@frozen(kw_only=True)
class Buffer:
    """An output in a static buffer (or a fresh copy of it)."""

    slot: PlanSlot


@frozen(kw_only=True)
class SameAsInput:
    """An output that is an input itself: the caller's own tensor goes back."""

    index: int


@frozen(kw_only=True, eq=False)
class ViewOfInput:
    """An output that shares memory with an input: a view of the caller's tensor; offset from the input's begin."""

    index: int
    layout: StorageLayout


@frozen(kw_only=True, eq=False)
class Literally:
    """An output that is a number, None or a tensor that the graph holds."""

    value: Any


@frozen(kw_only=True)
class SameAsOutput:
    """An output that is the same object as an earlier one."""

    index: int


Elsewhere = SameAsInput | ViewOfInput | Literally | SameAsOutput
"""An output that lies in no buffer of the recording."""
Output = Buffer | Elsewhere


@frozen(kw_only=True, eq=False)
class Plan:
    """What `recorder.record` found; `roots` are those of `steps` and `outputs`, lifetimes filled in."""

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    roots: tuple[Root, ...]
    pinned: frozenset[int]
    """Inputs that must come from the address they had at capture, for a reason that the graph gives."""
    from_zero: frozenset[int]
    """Inputs that must lie at the begin of their storage, as they did at capture: as_strided counts from there."""
    register_roots: dict[int, Root]
    views_resolved: int
    constants: int
    fills: bool | None = None
    """Whether memory without a value was filled (`state.fills_empty_memory`); None where there is no such memory."""
    thread_sensitive: str = ""
    """The first operator that gives other bits on one thread; looked at only where streams are asked for."""

    def root_of(self, operand: PlanSlot | Register) -> Root:
        return operand.root if isinstance(operand, PlanSlot) else self.register_roots[operand.number]

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the steps, in order of appearance, the default one first."""
        return tuple(dict.fromkeys((DEFAULT_STREAM, *(step.stream for step in self.steps))))

    def slots(self) -> list[PlanSlot]:
        touched = (operand for step in self.steps for operand in (*step.operands, *step.made))
        found = dict.fromkeys(operand for operand in touched if isinstance(operand, PlanSlot))
        found |= dict.fromkeys(output.slot for output in self.outputs if isinstance(output, Buffer))
        return list(found)


def leaves(parts: Iterable[Any]) -> list[PlanSlot | Register]:
    """The slots and registers among `parts`, and in the lists and tuples among them."""
    found: list[PlanSlot | Register] = []
    for part in parts:
        if isinstance(part, (PlanSlot, Register)):
            found.append(part)
        elif isinstance(part, (tuple, list)):
            found += leaves(part)
    return found


def lifetimes(steps: Sequence[Step], register_roots: dict[int, Root]) -> list[Root]:
    """Fill in `first` and `last` of every root that `steps` touch (-1 before); these roots in order of first use."""
    used: list[Root] = []
    for position, step in enumerate(steps):
        for operand in (*step.operands, *step.made):
            root = operand.root if isinstance(operand, PlanSlot) else register_roots[operand.number]
            if root.first < 0:
                used.append(root)
                root.first = position
            root.last = position
    return used


def dying_registers(steps: Sequence[Step], threads: Threads | None = None) -> tuple[list[list[int]], list[int]]:
    """(For each step the registers that nobody reads after it, those that threads need to the end).

    The memory of the former goes back at once, as in eager.
    """
    uses: dict[int, list[int]] = {}
    for position, step in enumerate(steps):
        for operand in (*step.operands, *step.made):
            if isinstance(operand, Register):
                uses.setdefault(operand.number, []).append(position)
    dying: list[list[int]] = [[] for _ in steps]
    lasting: list[int] = []
    for number, at in uses.items():
        if threads is None or all(step == at[-1] or threads.orders(step, at[-1]) for step in at):
            dying[at[-1]].append(number)
        else:
            lasting.append(number)
    return dying, lasting


def lent_inputs(steps: Sequence[Step]) -> list[frozenset[int]]:
    """For each step the inputs that it may keep: those that no step before has written.

    What lies in an input that was written need not have lain there in eager: where it did not, whoever kept it would
    see what the caller does with the input later.
    """
    lent: list[frozenset[int]] = []
    written: set[int] = set()
    for step in steps:
        given = {operand.root.index for operand in leaves(step.args) if _is_input(operand)}
        lent.append(frozenset(given - written) if traits_of(step.op).may_keep else frozenset())
        written |= {operand.root.index for operand, writes in step.touched() if writes and _is_input(operand)}
    return lent


def _is_input(operand: PlanSlot | Register) -> TypeGuard[PlanSlot]:
    return isinstance(operand, PlanSlot) and operand.root.kind == "input"


# -- the steps on several threads


@frozen(kw_only=True)
class Workers:
    """The threads that streams may run on."""

    count: int = field(factory=usable_cores)
    """At most so many, the calling one included."""
    spin_us: float = 100.0
    """How long a thread looks for what it waits for before it sleeps."""
    cores: tuple[int, ...] = ()
    """Cores that all threads but the calling one are bound to, in order; the others run on any but the caller's."""
    falls_back: bool = True
    """Whether replays go on in one stream while the streams take longer than that."""


@frozen(kw_only=True, eq=False)
class Threads:
    """`from_plan(plan, count)` puts the plan's streams on at most `count` threads, the default stream on the first."""

    count: int
    thread: Sequence[int]
    """Of each step."""
    waits: Sequence[Sequence[int]]
    """For each step, those of other threads that must be done before and that nothing else implies."""
    known: Sequence[Sequence[int]]
    """known[step][thread]: the last step of that thread that is done when this one starts; -1 for none."""

    @classmethod
    def from_plan(cls, plan: Plan, count: int, sharing: frozenset[int] = frozenset()) -> Threads:
        """`sharing` are inputs that overlap other inputs: they count as one piece of memory."""
        number = {stream: place % count for place, stream in enumerate(plan.streams)}
        thread = [number[step.stream] for step in plan.steps]
        place = {id(step): position for position, step in enumerate(plan.steps)}
        asked = [(place[id(first)], then) for then, step in enumerate(plan.steps) for first in step.after]
        edges = sorted({*asked, *_hazards(plan, sharing)})
        waits: list[list[int]] = [[] for _ in thread]
        for first, then in fewest_events(range(len(thread)), thread, edges):
            waits[then].append(first)
        width = max(number.values()) + 1
        return cls(count=width, thread=thread, waits=waits, known=_known(thread, waits, width))

    @property
    def events(self) -> int:
        """Steps that another thread waits for."""
        return len({first for waits in self.waits for first in waits})

    def turns(self) -> list[list[int]]:
        """The steps of each thread, in order."""
        turns: list[list[int]] = [[] for _ in range(self.count)]
        for step, thread in enumerate(self.thread):
            turns[thread].append(step)
        return turns

    def orders(self, first: int, then: int) -> bool:
        """Whether `first` is done when `then` starts, however long each step takes."""
        return self.known[then][self.thread[first]] >= first


def _known(thread: Sequence[int], waits: Sequence[Sequence[int]], width: int) -> list[tuple[int, ...]]:
    now = [[-1] * width for _ in range(width)]
    after: list[tuple[int, ...]] = []
    known: list[tuple[int, ...]] = []
    for step, own in enumerate(thread):
        clock = now[own]
        for first in waits[step]:
            clock = [max(mine, theirs) for mine, theirs in zip(clock, after[first], strict=True)]
        known.append(tuple(clock))
        now[own] = [*clock[:own], step, *clock[own + 1 :]]
        after.append(tuple(now[own]))
    return known


@define
class _Use:
    """A piece of memory while the steps are walked."""

    written: int = -1
    read: list[int] = field(factory=list)


def _hazards(plan: Plan, sharing: frozenset[int]) -> Iterator[tuple[int, int]]:
    """(first, then) of every two steps that touch the same memory, one of them writing, and stand next in line."""
    piece = _pieces(plan.roots, sharing)
    uses: dict[int, _Use] = {}
    for position, step in enumerate(plan.steps):
        touched: dict[int, bool] = {}
        for operand, writes in step.touched():
            key = piece.get(root := id(plan.root_of(operand)), root)
            touched[key] = touched.get(key, False) or writes
        for key, writes in touched.items():
            use = uses.setdefault(key, _Use())
            if use.written >= 0:
                yield use.written, position
            if writes:
                yield from ((reader, position) for reader in use.read)
                use.written, use.read = position, []
            else:
                use.read.append(position)


def _pieces(roots: Sequence[Root], sharing: frozenset[int]) -> dict[int, int]:
    """{id(root): id of the root that stands for all that lie in the same memory}, for memory that is not the plan's."""
    overlapping = [root for root in roots if root.kind == "input" and root.index in sharing]
    outside = [root for root in roots if root.kind in ("input", "attribute") and root not in overlapping]
    piece = {id(root): id(overlapping[0]) for root in overlapping}
    end, first = 0, 0
    spans = [(*span_of(root.contents), root) for root in outside]
    for begin, stop, root in sorted(spans, key=lambda span: span[:2]):
        if begin >= end:
            first = id(root)
        piece[id(root)], end = first, max(end, stop)
    return piece
