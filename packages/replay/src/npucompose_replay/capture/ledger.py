"""What the recorder knows of tensors while it runs (storages, slots, registers), and how results are handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from attrs import define, field
from torch import fx

from npucompose.placement import ALIGNMENT
from npucompose_replay import gate
from npucompose_replay.operands import (
    CONTAINERS,
    PLAIN,
    StorageLayout,
    Traits,
    bytes_of,
    flat,
    is_plain,
    layout_of,
    mapped,
    relative,
    storage_of,
    without_memory,
)
from npucompose_replay.plan import (
    Buffer,
    Form,
    Literally,
    Output,
    PlanSlot,
    Register,
    Root,
    SameAsInput,
    SameAsOutput,
    Step,
    ViewOfInput,
)

aten = torch.ops.aten


_NUMBERS = (bool, int, float)


class Held:
    """A tensor during the run: the real one, its memory, and the register it stands in (None: a fixed place)."""

    __slots__ = ("_form", "_layout", "operand", "register", "root", "storage", "tensor", "whole_input")

    def __init__(
        self, tensor: torch.Tensor, root: Root, register: Register | None = None, whole_input: int | None = None
    ) -> None:
        self.tensor, self.root = tensor, root
        self.register, self.whole_input = register, whole_input
        self.storage = storage_of(tensor)
        self.operand: PlanSlot | Register | None = register
        """What stands for it in a step; None until the ledger is asked."""
        self._layout: StorageLayout | None = None
        self._form: tuple[StorageLayout, int] | None = None

    @property
    def layout(self) -> StorageLayout:
        if self._layout is None:
            self._layout = layout_of(self.tensor)
        return self._layout

    @property
    def form(self) -> tuple[StorageLayout, int]:
        """All that a kernel sees of it but its values."""
        if self._form is None:
            self._form = _lying(self.layout, self.tensor)
        return self._form


@define(eq=False)
class CaptureLedger:
    roots: dict[int, Root] = field(factory=dict)
    """By storage; an entry lives as long as a value that uses it (a freed storage's address may come again)."""
    slots: dict[tuple[int, StorageLayout], PlanSlot] = field(factory=dict)
    register_roots: dict[int, Root] = field(factory=dict)
    alive: list[torch.Tensor] = field(factory=list)
    """What must live as long as `roots` knows it, and nothing else holds."""
    _holders: dict[int, int] = field(factory=dict)
    _numbers: dict[Any, Held | None] = field(factory=dict)
    """Numbers that stand in kernels as tensors: one for equal numbers beside tensors of one dtype."""

    def root_of(self, tensor: torch.Tensor) -> Root | None:
        return self.roots.get(storage_of(tensor))

    def operand(self, value: Any) -> Any:
        """What stands in a step for a value; of a container, for each one in it."""
        if not isinstance(value, Held):
            return mapped(self.operand, value) if isinstance(value, CONTAINERS) else value
        if value.operand is None:
            value.operand = self.slot(value.root, value.layout)
        return value.operand

    def slot(self, root: Root, layout: StorageLayout) -> PlanSlot:
        key = (id(root), layout)
        found = self.slots.get(key)
        if found is None:
            found = self.slots[key] = PlanSlot(root, layout)
        return found

    def adopt(self, held: Held) -> Held:
        self.roots[held.storage] = held.root
        return held

    def hold(self, value: Any) -> None:
        for held in (value,) if isinstance(value, Held) else flat(value):
            if isinstance(held, Held):
                self._holders[held.storage] = self._holders.get(held.storage, 0) + 1

    def release(self, value: Any) -> None:
        for held in (value,) if isinstance(value, Held) else flat(value):
            if isinstance(held, Held):
                self.let_go(held.storage, held.root)

    def let_go(self, storage: int, root: Root) -> None:
        """One value less lies there; where it was the last one, the storage's address may come again."""
        left = self._holders[storage] = self._holders.get(storage, 0) - 1
        if left <= 0 and root.kind in ("pool", "fresh"):
            self.roots.pop(storage, None)
            del self._holders[storage]

    def into_register(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        root = self.roots.get(storage_of(tensor)) or Root(kind="fresh", nbytes=0)
        register = self.register(root)
        return self.adopt(Held(tensor, root, register))

    def register(self, root: Root) -> Register:
        made = Register(len(self.register_roots))
        self.register_roots[made.number] = root
        return made

    def numbered(self, traits: Traits, ordered: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with a tensor for each number that stands where the schema wants a tensor."""
        wants = [i for i in traits.tensors if isinstance(ordered[i], _NUMBERS)]
        if not wants:
            return ordered
        beside = [ordered[i].tensor for i in traits.tensors if isinstance(ordered[i], Held)]
        if traits.op is aten.where.self:
            beside = beside[1:]
        changed = list(ordered)
        for i in wants:
            changed[i] = self._number(ordered[i], beside) or ordered[i]
        return tuple(changed)

    def _number(self, number: Any, beside: Sequence[torch.Tensor]) -> Held | None:
        key = (type(number), repr(number), *((other.dtype, other.dim() == 0) for other in beside))
        if key not in self._numbers:
            tensor = number_as_tensor(number, beside)
            self._numbers[key] = (
                None
                if tensor is None
                else Held(tensor, Root(kind="constant", nbytes=tensor.element_size(), tensor=tensor))
            )
        return self._numbers[key]


def real(value: Any) -> Any:
    return value.tensor if isinstance(value, Held) else value


def unheld(args: Sequence[Any]) -> tuple[list[Any], list[Held]]:
    """The real arguments, and every tensor among them as it is held."""
    reals: list[Any] = []
    read: list[Held] = []
    for value in args:
        if isinstance(value, Held):
            reals.append(value.tensor)
            read.append(value)
        elif isinstance(value, CONTAINERS) and not is_plain(value):
            reals.append(mapped(real, value))
            read += [leaf for leaf in flat(value) if isinstance(leaf, Held)]
        else:
            reals.append(value)
    return reals, read


def all_constant(read: Sequence[Held]) -> bool:
    return all(held.root.kind == "constant" and not held.root.written for held in read)


def form_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """What tells arguments of a kernel apart, but for the values of tensors; 0.0 is not -0.0 and 1 not True."""
    kinds = tuple(map(type, values))
    if PLAIN.issuperset(kinds):
        return kinds, tuple(values)
    return kinds, tuple([value.form if isinstance(value, Held) else _form(value) for value in values])


def _form(value: Any) -> Any:
    if value is None or isinstance(value, int):  # its type stands beside it
        return value
    if isinstance(value, torch.Tensor):
        return _lying(layout_of(value), value)
    if isinstance(value, (list, tuple)):
        return form_of(value)
    if isinstance(value, dict):
        return form_of((*value, *value.values()))
    return value if type(value) in PLAIN else repr(value)


def _lying(layout: StorageLayout, tensor: torch.Tensor) -> tuple[StorageLayout, int]:
    return layout, tensor.data_ptr() % ALIGNMENT


def forms_of(returned: Any) -> tuple[Form, ...]:
    """What an operator returned, as Step.returns; () where a number is among it."""
    if any(not isinstance(leaf, (torch.Tensor, type(None))) for leaf in flat(returned)):
        return ()
    row = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    return mapped(lambda leaf: None if leaf is None else without_memory(leaf), row)


def registers_of(returned: Any) -> tuple[Register | tuple[Register, ...] | None, ...]:
    """What an operator returned, as Step.results: one entry for each return of the schema."""
    if returned is None:
        return ()

    def entry(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(entry(part) for part in value)
        return value.register if isinstance(value, Held) else None

    return tuple(entry(part) for part in returned) if isinstance(returned, tuple) else (entry(returned),)


def number_as_tensor(number: Any, others: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A 0-dim tensor that acts in a binary kernel exactly as the Python number would, or None.

    A Python number takes part in type promotion less than a tensor does: `int32[3] + 0.5` computes in float32, but
    with a float64 tensor of 0.5 in float64. A tensor of the promoted dtype gives the same promotion and the same value;
    not so for half and bfloat16, whose kernels use the number unrounded.
    """
    if len(others) != 1:
        return None
    promoted = torch.result_type(others[0], number)
    if promoted in (torch.half, torch.bfloat16) or promoted.is_complex:
        return None
    try:
        tensor = torch.tensor(number, dtype=promoted)
    except (RuntimeError, OverflowError):  # does not fit, e.g. 300 with uint8: leave it to the kernel
        return None
    return tensor if torch.result_type(others[0], tensor) == promoted else None


@define(eq=False, kw_only=True)
class OutputPlanner:
    """`describe(node, values)` describes the outputs; steps that fill buffers from registers are added to `steps`."""

    ledger: CaptureLedger
    steps: list[Step]
    pristine: dict[int, torch.Tensor]
    """Constants that a step writes or the graph returns: id(root) -> their bytes before."""
    births: list[tuple[int, Root]] = field(factory=list)
    """(step before which it is made, constant root)."""

    _copied: dict[int, Root] = field(factory=dict)
    """By id(root of registers): the buffer for its values."""

    def describe(self, node: fx.Node, values: Sequence[Any]) -> list[Output]:
        self._make_buffers(values)
        outputs: list[Output] = []
        for index, value in enumerate(values):
            earlier = [i for i in range(index) if isinstance(value, Held) and values[i] is value]
            outputs.append(SameAsOutput(index=earlier[0]) if earlier else self._output(node, value))
        return outputs

    def _output(self, node: fx.Node, value: Any) -> Output:
        if not isinstance(value, Held):
            if any(isinstance(leaf, Held) for leaf in flat(value)):
                raise gate.refused(node, "an output that is a list; AOTAutograd returns a flat tuple.")
            return Literally(value=value)
        root, layout = value.root, layout_of(value.tensor)
        if value.register is not None:
            if root.kind not in ("fresh", "pool"):
                raise gate.refused(node, "an output that shares memory with an input in a way only its kernel knows.")
            return self._copied_out(value.register, root, layout)
        if value.whole_input is not None:
            return SameAsInput(index=value.whole_input)
        if root.kind == "input":
            return ViewOfInput(index=root.index, layout=relative(value.tensor, root.contents))
        if root.kind == "attribute":
            return Literally(value=root.contents if layout_of(root.contents) == layout else value.tensor)
        if root.kind == "constant":
            # A caller may write into what it was given: made anew on every replay, like a constant that a step writes.
            self.pristine.setdefault(id(root), bytes_of(value.tensor.untyped_storage()).clone())
            root.written = True
        else:
            root.kind = "output"
        return Buffer(slot=self.ledger.slot(root, layout))

    def _make_buffers(self, values: Sequence[Any]) -> None:
        """Results that share memory go on sharing it: one buffer for all that lie in the same fresh memory.

        It begins where that memory does: AOTAutograd makes views of other tensors by the offset of a result.
        """
        ends: dict[int, int] = {}
        for value in values:
            if isinstance(value, Held) and value.register is not None:
                ends[id(value.root)] = max(ends.get(id(value.root), 0), layout_of(value.tensor).span()[1])
        self._copied.update({key: Root(kind="output", nbytes=end) for key, end in ends.items()})

    def _copied_out(self, register: Register, fresh: Root, layout: StorageLayout) -> Output:
        root = self._copied[id(fresh)]
        low, high = layout.span()
        layout = StorageLayout(
            dtype=layout.dtype,
            shape=layout.shape,
            stride=layout.stride,
            offset=layout.offset if high > low else 0,
        )
        slot = self.ledger.slot(root, layout)
        flat = layout.collapsed()
        if flat.overlaps_itself():  # all that lies between its first element and its last
            elements = (high - low) // layout.dtype.itemsize
            flat = attrs.evolve(flat, shape=(elements,), stride=(1,))
        # Note [Shape check of fresh outputs]: copy_ broadcasts silently; `view` refuses another number of elements, so
        # a kernel whose result changes its size with the data ends in an error, not in a wrong buffer.
        checked = self.ledger.register(self.ledger.register_roots[register.number])
        op, form = (aten.as_strided.default, (list(flat.shape), list(flat.stride), None))
        if flat.shape == layout.shape:
            op, form = (aten.view.default, (list(layout.shape),))
        self.steps.append(Step(op=op, args=(register, *form), results=(checked,)))
        self.steps.append(Step(op=aten.copy_.default, args=(self.ledger.slot(root, flat), checked, False)))
        return Buffer(slot=slot)

    def written_constants(self) -> dict[int, list[Step]]:
        """Copies, by position, that give written and returned constants their value anew on every replay."""
        outputs: dict[int, list[Step]] = {}
        for position, root in self.births:
            bytes_before = self.pristine.get(id(root))
            if bytes_before is None:
                continue
            source = Root(kind="constant", nbytes=root.nbytes, tensor=bytes_before)
            root.kind, root.tensor = "output", None
            whole = layout_of(bytes_before)
            step = Step(
                op=aten.copy_.default,
                args=(self.ledger.slot(root, whole), self.ledger.slot(source, whole), False),
            )
            outputs.setdefault(position, []).append(step)
        return outputs
