"""What the recorder knows of tensors while it runs: which storage is which root, who has a slot, who a register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field

from npucompose.replay.capture import kernels
from npucompose.replay.memory.pool import ALIGNMENT
from npucompose.replay.plan import CONTAINERS, PLAIN, Layout, Register, Root, Slot, is_plain, mapped
from npucompose.replay.traits import Traits

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
        self.operand: Slot | Register | None = register
        """What stands for it in a step; None until the ledger is asked."""
        self._layout: Layout | None = None
        self._form: tuple[Layout, int] | None = None

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._layout = Layout.of(self.tensor)
        return self._layout

    @property
    def form(self) -> tuple[Layout, int]:
        """All that a kernel sees of it but its values."""
        if self._form is None:
            self._form = _lying(self.layout, self.tensor)
        return self._form


@define(eq=False)
class Ledger:
    roots: dict[int, Root] = field(factory=dict)
    """By storage; an entry lives as long as a value that uses it (a freed storage's address may come again)."""
    slots: dict[tuple[int, Layout], Slot] = field(factory=dict)
    register_roots: dict[int, Root] = field(factory=dict)
    kept: list[torch.Tensor] = field(factory=list)
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

    def slot(self, root: Root, layout: Layout) -> Slot:
        key = (id(root), layout)
        found = self.slots.get(key)
        if found is None:
            found = self.slots[key] = Slot(root, layout)
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
                key = held.storage
                left = self._holders[key] = self._holders.get(key, 0) - 1
                if left <= 0 and held.root.kind in ("pool", "fresh"):
                    self.roots.pop(key, None)
                    del self._holders[key]

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
            tensor = kernels.number_as_tensor(number, beside)
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
        return _lying(Layout.of(value), value)
    if isinstance(value, (list, tuple)):
        return form_of(value)
    if isinstance(value, dict):
        return form_of((*value, *value.values()))
    return value if type(value) in PLAIN else repr(value)


def _lying(layout: Layout, tensor: torch.Tensor) -> tuple[Layout, int]:
    return layout, tensor.data_ptr() % ALIGNMENT


def registers_of(returned: Any) -> tuple[Register | tuple[Register, ...] | None, ...]:
    """What an operator returned, as Step.results: one entry for each return of the schema."""
    if returned is None:
        return ()

    def entry(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(entry(part) for part in value)
        return value.register if isinstance(value, Held) else None

    return tuple(entry(part) for part in returned) if isinstance(returned, tuple) else (entry(returned),)


def flat(structure: Any) -> list[Any]:
    if not isinstance(structure, (tuple, list, dict)):
        return [structure]
    if isinstance(structure, dict):
        return flat(list(structure.values()))
    leaves: list[Any] = []
    for part in structure:
        if isinstance(part, (tuple, list, dict)):
            leaves += flat(part)
        else:
            leaves.append(part)
    return leaves


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
