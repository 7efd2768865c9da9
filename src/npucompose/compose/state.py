"""What a call of a model changes beside its parameters, and the way back to the state in which it was built.

Buffers are rewound always. What lies elsewhere (a cache in an attribute, a counter in Python) is found by comparing
with a deep copy, attribute by attribute, and rewound from it where the model turns out to depend on it.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, MethodType
from typing import Any

import torch
from attrs import field, frozen
from torch import nn

from npucompose.measure.numerics import same_bits

MISSING = object()
"""What stands where an attribute is not there."""
BUFFERS = "_buffers"
_REGISTERED = ("_modules", "_parameters", BUFFERS)
Put = Callable[[Any], None]
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


@frozen
class Spot:
    """One place in which a model differs from its start. `put` writes there; `MISSING` takes it away."""

    path: str
    now: Any
    start: Any
    put: Put
    known: bool = True
    """False: two of these objects can be told apart by nothing but their identity."""

    @property
    def in_place(self) -> bool:
        """The objects have stayed, only their content has changed: whoever holds them sees the start again."""
        return _same_form(self.now, self.start)

    @property
    def is_buffer(self) -> bool:
        """A registered buffer, then and now: `rewind` looks after those by itself."""
        tensors = isinstance(self.now, torch.Tensor) and isinstance(self.start, torch.Tensor)
        return tensors and f".{BUFFERS}." in f".{self.path}"


class State:
    """The first state of a model. Parameters are shared with every copy, all else is a copy's own."""

    def __init__(self, module: nn.Module) -> None:
        self._start = _copied(module)
        self.outside: tuple[str, ...] = ()
        """Paths beside the buffers that `rewind` rewinds too; `steadiness` says whether there are any."""

    def copy(self) -> nn.Module:
        """Another model in its first state."""
        return _copied(self._start)

    def rewind(self, module: nn.Module) -> None:
        """The model's buffers as they were built, with `outside` everything else too; the objects stay if they can."""
        for name, start in self._start.named_buffers():
            holder, _, key = name.rpartition(".")
            _write(module.get_submodule(holder)._buffers, key, start)
        if not self.outside:
            return
        spots = list(_spots(module, self._start, {}, self.outside))
        if all(spot.in_place for spot in spots):
            for spot in spots:
                _copy_into(spot.now, spot.start)
        else:  # a copy of what was replaced needs the partners of all that it refers to
            self.rewind_all(module)

    def rewind_all(self, module: nn.Module) -> None:
        partners: dict[int, Any] = {id(parameter): parameter for parameter in self._start.parameters()}
        for spot in list(_spots(module, self._start, partners)):
            if spot.in_place:
                _copy_into(spot.now, spot.start)
            elif spot.known or _can_copy(spot.start):
                spot.put(MISSING if spot.start is MISSING else copy.deepcopy(spot.start, partners))

    def changed(self, module: nn.Module) -> list[Spot]:
        """Where the model differs from its start, its buffers left out."""
        return [spot for spot in _spots(module, self._start, {}) if not spot.is_buffer]

    def outside_of(self, module: nn.Module) -> dict[str, Any]:
        """{path: what is there now, or "as it was built"} for every place that is rewound beside the buffers."""
        if not self.outside:
            return {}
        spots = _spots(module, self._start, {}, self.outside)
        now = {spot.path: spot.now for spot in spots if spot.known}
        return {path: "as it was built" if (v := now.get(path, MISSING)) is MISSING else v for path in self.outside}


def _copied(module: nn.Module) -> nn.Module:
    """A deep copy; parameters are shared with it, and attributes that cannot be copied (a lock, a Python module)."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    try:
        return copy.deepcopy(module, dict(shared))
    except Exception:
        own = [value for m in module.modules() for name, value in vars(m).items() if name not in _REGISTERED]
        modules = {id(m): m for m in module.modules()}  # what refers to one of them is copied with it
        kept = {id(value): value for value in own if not _can_copy(value, dict(modules))}
        if not kept:
            raise
        return copy.deepcopy(module, {**shared, **kept})


def _write(row: dict[str, Any], key: str, start: torch.Tensor) -> None:
    if _same_form(row.get(key), start):
        _copy_into(row[key], start)
    else:
        row[key] = start.detach().clone()


def _same_form(now: Any, start: Any) -> bool:
    if isinstance(now, torch.Generator) and isinstance(start, torch.Generator):
        return now.device == start.device
    if not (isinstance(now, torch.Tensor) and isinstance(start, torch.Tensor)):
        return False
    forms = [(t.dtype, t.shape, t.device, t.layout, t.is_inference()) for t in (now, start)]
    return forms[0] == forms[1]


def _copy_into(now: Any, start: Any) -> None:
    if isinstance(now, torch.Generator):
        now.set_state(start.get_state())
        return
    with torch.no_grad():
        if not _equal(now, start):  # a constant that is written to is frozen anew
            now.detach().copy_(start)


def _can_copy(value: Any, memo: dict[int, Any] | None = None) -> bool:
    try:
        copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001  whatever an object raises that cannot be copied: it stays as it is
        return False
    return True


# Two objects side by side.


@frozen
class _Pairs:
    """What was met on a walk over two objects."""

    partners: dict[int, Any]
    """{id of an object in the second: the one in the first that stands where it does}, as deepcopy's memo wants it."""
    only: tuple[str, ...] = ()
    """Go where these paths lead, and nowhere else; () goes everywhere."""
    met: set[tuple[int, int]] = field(factory=set[tuple[int, int]])

    def leads(self, path: str) -> bool:
        return not self.only or any(one.startswith(path) or path.startswith(one) for one in self.only)


def _spots(now: Any, start: Any, partners: dict[int, Any], only: tuple[str, ...] = ()) -> Iterator[Spot]:
    """Where the first differs from the second; `partners` is filled on the way."""
    return _walk("", now, start, lambda _: None, _Pairs(partners, only))


def _walk(path: str, now: Any, start: Any, put: Put, pairs: _Pairs) -> Iterator[Spot]:
    if now is start or (id(now), id(start)) in pairs.met or not pairs.leads(path):
        return
    pairs.met.add((id(now), id(start)))
    whole = Spot(path, now, start, put)
    of_a_kind = type(now) is type(start) or not path  # the model itself may be of a class made for a copy
    if not of_a_kind or _is_leaf(now, start):
        equal = of_a_kind and _equal(now, start)
        if equal or whole.in_place:
            pairs.partners.setdefault(id(start), now)
        if not equal:
            yield whole
        return
    containers = (dict, list, tuple, deque, type, MethodType, BuiltinFunctionType)
    if not isinstance(start, containers) and not (_attributes(start) or _attributes(now)):
        yield Spot(path, now, start, put, known=False)
        return
    pairs.partners.setdefault(id(start), now)
    if isinstance(start, dict):
        yield from _rows(path, now, start, now, pairs)
    elif isinstance(start, (list, tuple, deque)):
        row = list(now)
        for at, (a, b) in enumerate(zip(now, start, strict=True)):
            setter = _member_setter(now, row, at, put) if isinstance(now, tuple) else _item_setter(now, at)
            yield from _walk(f"{path}[{at}]", a, b, setter, pairs)
    elif _attributes(start) or _attributes(now):
        yield from _rows(path, _attributes(now), _attributes(start), now, pairs)


def _is_leaf(now: Any, start: Any) -> bool:
    """Compared as a whole: it has no parts, or not the same ones."""
    if isinstance(start, (*_PLAIN, torch.Tensor, torch.Generator)):
        return True
    if isinstance(start, (list, tuple, deque)):
        return len(now) != len(start)
    if isinstance(start, (dict, MethodType)) or _attributes(start) or _attributes(now):
        return False
    return type(start).__eq__ is not object.__eq__


def _attributes(value: Any) -> Mapping[str, Any]:
    slots = itertools.chain.from_iterable(
        (s,) if isinstance(s := vars(kind).get("__slots__", ()), str) else s for kind in type(value).__mro__
    )
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _rows(path: str, now: Mapping[Any, Any], start: Mapping[Any, Any], holder: Any, pairs: _Pairs) -> Iterator[Spot]:
    """What two dicts hold under equal keys: items of `holder` where that is a dict, else its attributes."""
    for key in [*start, *(key for key in now if key not in start)]:
        a, b = now.get(key, MISSING), start.get(key, MISSING)
        if isinstance(holder, dict):
            registered = path.endswith(_REGISTERED)
            place = f"{path}.{key}" if registered else f"{path}[{key!r}]"
            yield from _walk(place, a, b, _item_setter(holder, key), pairs)
        else:
            yield from _walk(f"{path}.{key}" if path else str(key), a, b, _attribute_setter(holder, key), pairs)


def _item_setter(holder: Any, key: Any) -> Put:
    def put(value: Any) -> None:
        if value is MISSING:
            holder.pop(key, None)
        else:
            holder[key] = value

    return put


def _member_setter(holder: tuple[Any, ...], row: list[Any], at: int, put: Put) -> Put:
    """A tuple takes no item: another one of its kind takes its place. `row` is what is in it by then."""

    def put_member(value: Any) -> None:
        row[at] = value
        put(type(holder)(*row) if hasattr(holder, "_fields") else tuple(row))

    return put_member


def _attribute_setter(holder: Any, name: str) -> Put:
    def put(value: Any) -> None:
        if value is MISSING:
            object.__delattr__(holder, name)
        else:
            object.__setattr__(holder, name, value)

    return put


def _equal(now: Any, start: Any) -> bool:
    """Bit for bit for tensors; what cannot be compared counts as equal."""
    if isinstance(now, torch.Tensor):
        dense = now.layout == torch.strided and not now.is_quantized
        return _same_form(now, start) and (not dense or same_bits(now.detach(), start.detach()))
    if isinstance(now, torch.Generator):
        return torch.equal(now.get_state(), start.get_state())
    try:
        equal: Any = now == start
        return bool(equal.all()) if hasattr(equal, "all") else bool(equal) or (now != now and start != start)
    except Exception:  # noqa: BLE001  an object that raises when it is compared says nothing
        return True


def words_of(path: str) -> str:
    """`layers._modules.0._parameters.x` as Python writes it: `layers.0.x`."""
    return path.replace("_modules.", "").replace("_parameters.", "").replace("_buffers.", "")
