"""What a call of a model changes beside its parameters, and the way back to the state in which it was built.

Buffers are rewound always. What lies elsewhere (a cache in an attribute, a counter in Python) is found by comparing
with a deep copy, attribute by attribute, and rewound from it where the model turns out to depend on it.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, MethodType
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import nn

from npucompose.bits import same_bytes
from npucompose.errors import listed
from npucompose.measure.numerics import compare
from npucompose.models.inputs import mapped
from npucompose.results.measured import Numerics

MISSING = object()
"""What stands where an attribute is not there."""
BUFFERS = "_buffers"
_REGISTERED = ("_modules", "_parameters", BUFFERS)
Put = Callable[[Any], None]
Inputs = Mapping[str, Any]
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


class ModelState:
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
    return isinstance(now, torch.Tensor) and isinstance(start, torch.Tensor) and _form(now) == _form(start)


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.device, tensor.layout, tensor.is_inference()


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
    met = id(now), id(start)
    if now is start or met in pairs.met or not pairs.leads(path):
        return
    pairs.met.add(met)
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
            put_one = partial(_put_member, now, row, at, put) if isinstance(now, tuple) else partial(_put_item, now, at)
            yield from _walk(f"{path}[{at}]", a, b, put_one, pairs)
    else:
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
            yield from _walk(place, a, b, partial(_put_item, holder, key), pairs)
        else:
            yield from _walk(f"{path}.{key}" if path else str(key), a, b, partial(_put_attribute, holder, key), pairs)


def _put_item(holder: Any, key: Any, value: Any) -> None:
    if value is MISSING:
        holder.pop(key, None)
    else:
        holder[key] = value


def _put_member(holder: tuple[Any, ...], row: list[Any], at: int, put: Put, value: Any) -> None:
    """A tuple takes no item: another one of its kind takes its place. `row` is what is in it by then."""
    row[at] = value
    put(type(holder)(*row) if hasattr(holder, "_fields") else tuple(row))


def _put_attribute(holder: Any, name: str, value: Any) -> None:
    if value is MISSING:
        object.__delattr__(holder, name)
    else:
        object.__setattr__(holder, name, value)


def _equal(now: Any, start: Any) -> bool:
    """Bit for bit for tensors; what cannot be compared counts as equal."""
    if isinstance(now, torch.Tensor):
        dense = now.layout == torch.strided and not now.is_quantized
        return _same_form(now, start) and (not dense or same_bytes(now, start))
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


# Does eager equal itself? Asked before it serves as a reference: called twice from one state, it must give one result.
# Note [Twice from one state]
# Both calls start from rewound buffers and seeded random numbers. Where they differ, the model keeps state elsewhere:
# then everything that its modules hold is rewound from a deep copy, and a third call shows whether that was all.

SHOWN = 3
"""Attributes that a sentence names."""


@frozen(kw_only=True)
class Steadiness:
    """How far eager equals itself."""

    repeats: bool = True
    """Bit for bit."""
    within: bool = True
    """As far as the table of tolerances asks."""
    words: str | None = None
    """What is wrong with the model as a reference."""
    in_python: tuple[str, ...] = ()
    """Places that decide the result and change in a call, and are no tensors written in place: a replay leaves them."""

    @property
    def why_attached(self) -> str:
        """Why no handle replays without the model's own Python; empty where nothing speaks against one."""
        if not self.in_python:
            return ""
        return f"a call changes {_listed(self.in_python)} in Python, which a replay would leave out"


def steadiness_of(
    state: ModelState, module: nn.Module, examples: tuple[Inputs, Inputs], step: Callable[[], tuple[Any, Inputs]]
) -> Steadiness:
    """Calls eager twice, three times where it differs; makes `state` rewind what it has to.

    `examples` are the example inputs, asked for twice; `step` calls `module` and gives the result and its inputs.
    """
    inputs = compare(dict(examples[0]), dict(examples[1]), exact=True)
    if not inputs.passed:
        words = f"the example inputs are others each time they are asked for: {'; '.join(inputs.problems)}"
        return Steadiness(repeats=False, within=False, words=words)

    def called() -> Any:
        """What a call leaves behind, as copies: the next call may overwrite it."""
        result, given = step()
        return mapped([result, dict(given), list(module.buffers())], lambda tensor: tensor.detach().clone())

    state.rewind_all(module)
    versions = {name: parameter._version for name, parameter in module.named_parameters()}
    first = called()
    changed = state.changed(module)
    written = [name for name, parameter in module.named_parameters() if parameter._version != versions[name]]
    state.rewind(module)
    second = compare(first, called())
    if second.bitwise:
        return Steadiness()
    if not changed:
        return _unsteady(changed, written, second)
    known = tuple(spot.path for spot in changed if spot.known)
    state.outside = known or tuple(spot.path for spot in changed)
    state.rewind(module)
    third = compare(first, called())
    if not third.bitwise:
        return _unsteady(changed, written, third)
    return Steadiness(
        words=f"the model keeps state outside its buffers, in {_shown(changed)}: a second eager call {_off(second)}. "
        "It is rewound with the buffers, from a deep copy",
        in_python=tuple(words_of(spot.path) for spot in changed if not spot.in_place),
    )


def _unsteady(changed: Sequence[Spot], written: Sequence[str], found: Numerics) -> Steadiness:
    """`found` compares two calls between which everything was rewound that can be."""
    if written:
        why = f"it writes to its parameters ({_listed(written)}), which all sides share"
    elif changed:
        why = f"{_shown(changed)} changed, and rewinding that does not help"
    else:
        why = (
            "none of its attributes changed: it draws numbers from a source of its own, keeps state outside its "
            "modules, or returns memory that nobody wrote"
        )
    words = f"the model differs from itself: called twice from one state, eager {_off(found)}; {why}"
    return Steadiness(repeats=False, within=found.passed and not written, words=words)


def _off(found: Numerics) -> str:
    if found.max_abs_err is None:
        return "gives something else (" + "; ".join(found.problems) + ")"
    return f"differs by up to {found.max_abs_err:.3g}"


def _shown(spots: Sequence[Spot]) -> str:
    """The places whose change can be seen; those of which nobody can tell only where there are no others."""
    return _listed([words_of(spot.path) for spot in spots if spot.known] or [words_of(spot.path) for spot in spots])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return listed(f"'{name}'" for name in names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def unsteady_result(found: Steadiness) -> Numerics | None:
    """The verdict on a model that no comparison can say anything of; None where one can."""
    if found.within:
        return None
    return Numerics(
        reference="eager",
        max_abs_err=None,
        bitwise=False,
        passed=False,
        cause="model",
        model=found.words,
        problems=(found.words or "",),
    )


def seed_all(seed: int) -> None:
    """Every source of random numbers that a process has by itself."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
