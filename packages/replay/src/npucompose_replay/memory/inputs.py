"""The front of a replay: is this the signature of the capture, and where do the inputs lie today?

An input is *fixed* (parameters, buffers and what the graph pins: its address belongs to the signature), *adopted* (the
caller's tensor is the buffer; when another comes, the slots are laid over that one) or *private* (copied in on every
call, because it has so many views that copying is cheaper). None ever lies in this recording's own output buffers: a
result that comes back as an input is held by who brings it, and the front leaves its memory to him.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from attrs import define

from npucompose.errors import SignatureError
from npucompose.placement import ALIGNMENT
from npucompose_replay import gate
from npucompose_replay.operands import StorageLayout, laid_over, layout_of, over, span_of
from npucompose_replay.plan import PlanSlot

_address = torch.Tensor.data_ptr
_BYTES_PER_SLOT = 8192
"""Laying a slot over another tensor takes as long as copying so much (about 1 µs)."""

Span = tuple[int, int]


class Places(Protocol):
    """Where an executor reads and writes the inputs."""

    def copies_rather(self, index: int, nbytes: int) -> bool:
        """Whether copying `nbytes` takes less time than moving input `index`."""
        ...

    def move(self, index: int, tensor: torch.Tensor) -> None:
        """Input `index` lies where `tensor` does, from now on."""
        ...


class Slots:
    """Places of an executor that holds a tensor for each slot: `lay(number, tensor)` puts one there."""

    def __init__(
        self,
        inputs: Sequence[Any],
        slots: Sequence[PlanSlot],
        lay: Callable[[int, torch.Tensor], None],
        copies: bool = True,
    ) -> None:
        """Without `copies` operators meet the caller's own memory, whatever it costs."""
        self._slots = _slots_of_inputs(inputs, slots)
        self._lay, self._copies = lay, copies

    def copies_rather(self, index: int, nbytes: int) -> bool:
        return self._copies and len(self._slots[index]) > 1 + nbytes // _BYTES_PER_SLOT

    def move(self, index: int, tensor: torch.Tensor) -> None:
        for number, layout in self._slots[index]:
            self._lay(number, tensor if layout is None else laid_over(tensor, layout))


class Inputs:
    """`admit(inputs)` places one call's inputs, or answers False and changes nothing; `give_back` ends the call."""

    def __init__(
        self,
        inputs: Sequence[Any],
        *,
        fixed: frozenset[int],
        written: frozenset[int],
        from_zero: frozenset[int],
        lent: frozenset[int] = frozenset(),
        places: Places,
    ) -> None:
        """`lent` are those that an operator may keep (see `plan.lent_inputs`)."""
        self.signature = signature(inputs, fixed)
        self._count = len(inputs)
        self._fixed = fixed
        self._written = written
        self._from_zero = tuple(from_zero)
        self._lent = lent
        self._places = places
        self._tensor_at = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self._all_tensors = len(self._tensor_at) == len(inputs)
        self._forms = {i: _form(inputs[i]) for i in self._tensor_at}
        self._numbers = [(i, value) for i, value in enumerate(inputs) if not isinstance(value, torch.Tensor)]
        self._in_place = [i for i in self._tensor_at if inputs[i].numel()]
        self._addresses = [inputs[i].data_ptr() for i in self._in_place]
        self._spans = {i: span_of(inputs[i]) for i in self._in_place}
        self._sizes = {i: high - low for i, (low, high) in self._spans.items()}
        self._private: dict[int, Private] = {}
        self._copies: list[tuple[int, torch.Tensor, StorageLayout | None]] = []
        self._pick_tensors = picker(self._tensor_at)
        self._pick_in_place = picker(self._in_place)
        self._held = [inputs[i] for i in self._in_place if i in fixed]
        self._guard = layout_guard([inputs[i] for i in self._tensor_at])

    def admit(self, inputs: Sequence[Any]) -> bool:
        if len(inputs) != self._count:
            return False
        tensors = inputs if self._all_tensors else self._pick_tensors(inputs)
        # Plain ones only: what torch's guard asks of a tensor not every kind can answer.
        if not (gate.are_plain(tensors) and self._guard(*tensors)) and not self._same_forms(inputs):
            return False
        if not all(is_there(inputs[i], nbytes) for i, nbytes in self._sizes.items()):
            return False
        for i in self._from_zero:
            if inputs[i].storage_offset():
                return False
        for i, number in self._numbers:
            if not same_number(inputs[i], number):
                return False
        if list(map(_address, self._pick_in_place(inputs))) != self._addresses and not self._move(inputs):
            return False
        return not self._copies or self._copy_in(inputs)

    def give_back(self, inputs: Sequence[Any]) -> None:
        """What the graph wrote reaches the caller's tensors, and autograd learns that they changed."""
        for i in self._written:
            private = self._private.get(i)
            if private is not None:
                inputs[i].copy_(private.tensor)
            elif not inputs[i].is_inference():
                torch.autograd.graph.increment_version(inputs[i])

    def lent(self, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
        return {i: inputs[i] for i in self._lent}

    # -- for a front that looks for itself, and asks only when something differs

    def described(self, i: int, given: Any) -> dict[str, Any]:
        """What such a front has to know of input i."""
        if not isinstance(given, torch.Tensor):
            return {"value": given}
        return {
            "tensor": given,
            "fixed": i in self._fixed,
            "written": i in self._written,
            "from_zero": i in self._from_zero,
            "lent": i in self._lent,
        }

    def admit_from(self, inputs: Sequence[Any], addresses: Sequence[int]) -> tuple[list[int], bool] | None:
        """`admit`, for inputs that lay at `addresses` before. None, or where they lie now and whether to ask again."""
        self._addresses = [addresses[i] for i in self._in_place]
        self._spans.update((i, (addresses[i], addresses[i] + self._sizes[i])) for i in self._in_place)
        if not self.admit(inputs):
            return None
        lying = list(addresses)
        for i, address in zip(self._in_place, self._addresses, strict=True):
            lying[i] = address
        return lying, bool(self._copies)

    # -- when something differs

    def _same_forms(self, inputs: Sequence[Any]) -> bool:
        for i, form in self._forms.items():
            value = inputs[i]
            if not isinstance(value, torch.Tensor) or gate.why_not(value) or _form(value) != form:
                return False
        self._guard = layout_guard([inputs[i] for i in self._tensor_at])
        return True

    def _move(self, inputs: Sequence[Any]) -> bool:
        """Follow each adopted input to where it lies now; False, with nothing done, when one may not lie there."""
        moved: list[tuple[int, int, int]] = []
        for place, i in enumerate(self._in_place):
            address = _address(inputs[i])
            if address != self._addresses[place]:
                if i in self._fixed:
                    return False
                moved.append((place, i, address))
        if self._written:
            now = {i: _address(inputs[i]) for i, _, _ in self._copies}
            now.update((i, address) for _, i, address in moved)
            if not self._may_lie(now):
                return False
        copied: list[int] = []
        for place, i, address in moved:
            size = self._sizes[i]
            if self._places.copies_rather(i, size):
                self._make_private(i, inputs[i])
                copied.append(i)
                continue
            self._places.move(i, inputs[i])
            self._addresses[place] = address
        if copied:
            kept = [(i, at) for i, at in zip(self._in_place, self._addresses, strict=True) if i not in copied]
            self._in_place, self._addresses = [i for i, _ in kept], [at for _, at in kept]
            self._pick_in_place = picker(self._in_place)
        return True

    def _may_lie(self, addresses: dict[int, int]) -> bool:
        """Whether inputs may lie at `addresses`: nothing that the graph writes overlaps another input.

        (Inputs that overlapped at capture while one is written are fixed: they never come here.) Notes the new spans.
        """
        spans = dict(self._spans)
        spans.update((i, (address, address + self._sizes[i])) for i, address in addresses.items())
        for i in addresses:
            mine = spans[i]
            others = spans if i in self._written else self._written
            if any(j != i and j in spans and _overlap(mine, spans[j]) for j in others):
                return False
        self._spans = spans
        return True

    def _make_private(self, i: int, tensor: torch.Tensor) -> None:
        private = Private.like(tensor)
        self._private[i] = private
        self._places.move(i, private.tensor)
        form = layout_of(tensor)
        expanded = any(step == 0 and size > 1 for size, step in zip(form.shape, form.stride, strict=True))
        self._copies.append((i, private.tensor, form.collapsed() if expanded else None))

    def _copy_in(self, inputs: Sequence[Any]) -> bool:
        if self._written:
            now = {i: _address(inputs[i]) for i, _, _ in self._copies}
            if any(address != self._spans[i][0] for i, address in now.items()) and not self._may_lie(now):
                return False
        for i, buffer, expanded in self._copies:
            if expanded is None:
                buffer.copy_(inputs[i])
            else:
                shape, stride = expanded.shape, expanded.stride
                buffer.as_strided(shape, stride).copy_(inputs[i].as_strided(shape, stride))
        return True


def _form(t: torch.Tensor) -> tuple[Any, ...]:
    """All of a tensor but its address and its values."""
    # A size-1 dimension's stride is noise, but kernels may pick their layout by it: it counts.
    return t.dtype, t.device, t.layout, t.shape, t.stride(), t.is_conj(), t.is_neg()


def signature(inputs: Sequence[Any], fixed: frozenset[int] = frozenset()) -> tuple[str, ...]:
    """('torch.float32[2]@cpu', 'int 3'); a fixed input's address stands behind it."""
    return tuple(_described(value, i in fixed) for i, value in enumerate(inputs))


def refusal(
    inputs: Sequence[Any],
    captured: tuple[str, ...],
    fixed: frozenset[int],
    device: str = "cpu",
    *,
    subclasses: bool = False,
) -> SignatureError:
    """Why a recording of the signature `captured` did not replay these inputs."""
    if where := gate.why_not_here():
        return SignatureError(f"a replay {where} would keep its operators from it: call it outside.")
    if found := gate.first_refused(inputs, device, subclasses=subclasses):
        index, why = found
        wanted = f"; captured for {captured[index]}" if index < len(captured) else ""
        return SignatureError(f"input {index} {why}{wanted}", index=index, why=f"{why}{wanted}")
    given = signature(inputs, fixed)
    words = _difference(captured, given)
    if captured == given:
        words += (
            ": the same, but an input that the graph writes overlaps another input, or an input that as_strided reads "
            "does not lie at the begin of its storage"
        )
    return SignatureError(words)


FEW_INPUTS, FEW_DIFFERENCES = 4, 3


def _difference(captured: tuple[str, ...], given: tuple[str, ...]) -> str:
    """Both signatures where they are short; else the inputs that differ: a model has hundreds of parameters."""
    if len(captured) != len(given) and max(len(captured), len(given)) > FEW_INPUTS:
        return f"captured for {len(captured)} inputs, got {len(given)}"
    differing = [i for i, (one, other) in enumerate(zip(captured, given, strict=False)) if one != other]
    if len(captured) <= FEW_INPUTS or not differing:
        few = len(captured) <= FEW_INPUTS
        return f"captured for {captured}, got {given}" if few else f"captured for these {len(captured)} inputs"
    shown = [f"input {i} captured for {captured[i]}, got {given[i]}" for i in differing[:FEW_DIFFERENCES]]
    more = len(differing) - FEW_DIFFERENCES
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _slots_of_inputs(
    inputs: Sequence[Any], slots: Sequence[PlanSlot]
) -> dict[int, list[tuple[int, StorageLayout | None]]]:
    """{input: [(slot number, layout from the input's begin, or None for the whole input)]}"""
    found: dict[int, list[tuple[int, StorageLayout | None]]] = {
        i: [] for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)
    }
    for number, slot in enumerate(slots):
        if slot.root.kind == "input":
            given = inputs[slot.root.index]
            begin = given.storage_offset() * given.element_size() // slot.layout.dtype.itemsize
            whole = slot.layout == layout_of(given)
            found[slot.root.index].append((number, None if whole else slot.layout.moved(-begin)))
    return found


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _described(value: Any, with_address: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value}"
    if why := gate.why_not_anywhere(value):
        return f"a tensor that {why}"
    at = f" at {value.data_ptr():#x}" if with_address else ""
    lazy = ("conj " if value.is_conj() else "") + ("neg " if value.is_neg() else "")
    return f"{lazy}{layout_of(value)}@{value.device}{at}"


def is_there(tensor: torch.Tensor, nbytes: int) -> bool:
    """`gate.why_no_memory` where it is known how many bytes lie between the first element and the end of the last."""
    storage = tensor.untyped_storage()
    room = storage.nbytes() - tensor.storage_offset() * tensor.element_size()
    return room >= nbytes and gate.has_memory(storage)


def same_number(given: Any, captured: Any) -> bool:
    """Same type, same value, same sign: 1 is not True, and 0.0 is not -0.0."""
    if given is captured:
        return True
    if type(given) is not type(captured) or given != captured:
        return False
    return not isinstance(captured, (float, complex)) or repr(given) == repr(captured)


def picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """`picker([0, 2])(inputs)` is `(inputs[0], inputs[2])`, without a Python loop."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    return lambda inputs: [inputs[i] for i in indices]


def layout_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A quick yes: dtype, shape, strides and kind of every tensor are as these. Its no means only "look closely".

    torch checks its own guards with it (C++, some 30 ns a tensor); a torch without it only costs the closer look.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (ImportError, TypeError, RuntimeError):
        return lambda *_: False


@define(eq=False)
class Private:
    """Memory of our own, laid out like an input; `owner` keeps it alive."""

    tensor: torch.Tensor
    storage: torch.UntypedStorage
    owner: torch.Tensor

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Private:
        """The address keeps its remainder by 64: a kernel that looks at alignment sees what it would see in eager."""
        layout = layout_of(tensor).moved(-tensor.storage_offset())
        nbytes = layout.span()[1]
        owner = torch.zeros(nbytes + 2 * ALIGNMENT, dtype=torch.uint8)
        storage = over(owner.data_ptr() + (tensor.data_ptr() - owner.data_ptr()) % ALIGNMENT, nbytes)
        return cls(layout.over(storage), storage, owner)
