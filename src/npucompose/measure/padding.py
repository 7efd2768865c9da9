"""Do real rows depend on what padding holds? A metamorphic check, and the operator through which padding gets in.

A server pads a step to the next size that it has captured; the rows beyond the requests hold what was there before.
Nothing of a real row may depend on them: the same call with other padding must give the same bits in the real rows
(metamorphic testing: Chen et al., HKUST-CS98-01, 1998). Public cases where that broke are vllm-ascend's #10895, #13779,
#12840 and #11774.

Where it breaks, the calls are made once more, operator by operator. What changes with the padding lies in the rows of
the padding, along whatever dimension a result has its rows; an operator whose result changes elsewhere too has mixed
rows and is suspected. The guilty one is found by bisection: with the results of all suspects up to it put right, the
call's results are right, and with one suspect less they are not. What is mixed and masked out again does not count,
since then results are right without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from npucompose.npu.capture.lines import model_line
from npucompose.results.measured import Garbage, PaddingReader

Inputs = Mapping[str, Any]
Call = Callable[[Inputs], Any]
"""Calls the model from its first state; gives all that the call leaves behind: results, inputs, buffers."""
KINDS: tuple[Garbage, ...] = ("noise", "nan", "huge")
MOST_READERS = 8


@frozen(kw_only=True)
class Rows:
    """Which inputs are padded: the first `real` of `rows` in their first dimension are real."""

    names: tuple[str, ...]
    rows: int
    real: int

    def words(self, changed: Tensor) -> str:
        """`3 of 4 real rows`, or `7 of 9 elements` where the first dimension is not that of the rows."""
        if changed.dim() and len(changed) == self.rows:
            return f"{int(changed[: self.real].reshape(self.real, -1).any(1).sum())} of {self.real} real rows"
        return f"{int(changed.sum())} of {changed.numel()} elements"

    def spoiled(self, inputs: Inputs, garbage: Garbage, seed: int) -> Inputs:
        """`inputs` with garbage in the rows beyond the real ones."""
        found = dict(inputs)
        for at, name in enumerate(self.names):
            found[name] = inputs[name].clone(memory_format=torch.preserve_format)
            part = found[name][self.real :]
            part.copy_(_garbage(inputs[name], part.shape, garbage, seed + at))
        return found

    def within_padding(self, changed: Tensor) -> bool:
        """Whether elements that are true lie in the padding, along one of the dimensions that can be that of the rows:
        rows, or rows times something that was folded into it."""
        if not changed.any():
            return True
        return any(not changed[part].any() for part in self._along(changed.shape))

    def real_parts(self, shape: torch.Size) -> list[tuple[slice, ...]]:
        """Indices of all that may be of real rows in a tensor of this shape; of one without rows, all of it."""
        return self._along(shape) or [(slice(None),) * len(shape)]

    def _along(self, shape: torch.Size) -> list[tuple[slice, ...]]:
        """For each dimension that can be that of the rows, the indices of the real ones."""
        whole = (slice(None),) * len(shape)
        return [
            (*whole[:dim], slice(size // self.rows * self.real), *whole[dim + 1 :])
            for dim, size in enumerate(shape)
            if size and size % self.rows == 0
        ]


def _garbage(of: Tensor, shape: torch.Size, garbage: Garbage, seed: int) -> Tensor:
    """Noise is drawn from the values of the input itself, which are all legal, indices too; floats are scaled."""
    g = torch.Generator().manual_seed(seed)
    count = shape.numel()
    values = of.detach().flatten().cpu()
    drawn = values[torch.randint(len(values), (count,), generator=g)].reshape(shape)
    if not of.is_floating_point():
        return drawn
    if garbage == "nan":
        return torch.full(shape, float("nan"), dtype=of.dtype)
    if garbage == "huge":
        sign = torch.randint(2, (count,), generator=g).reshape(shape) * 2 - 1
        return sign.to(of.dtype) * torch.finfo(of.dtype).max
    return drawn * (1 + torch.rand(shape, generator=g)).to(of.dtype)


def changed_rows(one: Any, other: Any, rows: Rows) -> tuple[str, ...]:
    """Of two things that a call left behind, the tensors that differ in a bit outside of the padding; NaN is NaN."""
    pairs = zip(tree_flatten_with_path(one)[0], tree_leaves(other), strict=True)
    found = []
    for (path, a), b in pairs:
        if isinstance(a, Tensor):
            changed = _differ(a, b)
            if not rows.within_padding(changed):
                found.append(f"{keystr(path) or 'the result'}: {rows.words(changed)}")
    return tuple(found)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    return (a != b) & ~((a != a) & (b != b))


@define
class _Step:
    """One operator of a call: who called it, and its results."""

    operator: str
    source: str | None
    results: list[Tensor]


class _Watched(TorchDispatchMode):
    """Every operator of a call, in order; `see` may look at its results and put them right."""

    def __init__(self, see: Callable[[int, Any, list[Tensor]], None]) -> None:
        super().__init__()
        self.see = see
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(self.count, func, [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)])
        self.count += 1
        return result


def readers(call: Call, inputs: Inputs, rows: Rows, garbage: Garbage, seed: int = 0) -> tuple[PaddingReader, ...]:
    """The operators through which garbage in the padding gets into real rows of what `call` leaves; () where it cannot
    be said: the call takes other operators when its values change, or no operator's result explains it."""
    wanted, steps = _steps(call, inputs)
    spoiled = rows.spoiled(inputs, garbage, seed)
    suspected = _suspected(call, steps, spoiled, rows)

    def is_right(healed: Sequence[int]) -> bool:
        return not changed_rows(wanted, _healed(call, steps, spoiled, rows, frozenset(healed)), rows)

    if not is_right(suspected):
        return ()
    guilty: list[int] = []
    while not is_right(guilty) and len(guilty) < MOST_READERS:
        low, high = 0, len(suspected)  # with the first `low` put right results are wrong, with `high` right
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_right([*suspected[:middle], *guilty]) else (middle, high)
        guilty.append(suspected[high - 1])
    return tuple(
        PaddingReader(operator=steps[at].operator, source=steps[at].source, garbage=garbage) for at in sorted(guilty)
    )


def _steps(call: Call, inputs: Inputs) -> tuple[Any, list[_Step]]:
    steps: list[_Step] = []

    def see(at: int, operator: Any, results: list[Tensor]) -> None:
        steps.append(_Step(str(operator), model_line(), [one.clone() for one in results]))

    with _Watched(see):
        left = call(inputs)
    return left, steps


def _suspected(call: Call, steps: Sequence[_Step], spoiled: Inputs, rows: Rows) -> list[int]:
    """Operators, by their numbers, whose results change outside of the padding's rows. Views are what they are of."""
    found: list[int] = []

    def see(at: int, operator: Any, results: list[Tensor]) -> None:
        if not _is_step(steps, at, operator, results) or operator.is_view:
            return
        if not all(rows.within_padding(_differ(a, b)) for a, b in zip(results, steps[at].results, strict=True)):
            found.append(at)

    with _Watched(see):
        call(spoiled)
    return found


def _is_step(steps: Sequence[_Step], at: int, operator: Any, results: Sequence[Tensor]) -> bool:
    known = at < len(steps) and str(operator) == steps[at].operator
    return known and [one.shape for one in results] == [one.shape for one in steps[at].results]


def _healed(call: Call, steps: Sequence[_Step], spoiled: Inputs, rows: Rows, healed: frozenset[int]) -> Any:
    """What the call leaves with spoiled padding, when these operators give what they give without; but for the
    padding itself, which another one may read."""

    def see(at: int, operator: Any, results: list[Tensor]) -> None:
        if at in healed and _is_step(steps, at, operator, results):
            for result, right in zip(results, steps[at].results, strict=True):
                for part in rows.real_parts(result.shape):
                    result[part] = right[part]

    with _Watched(see):
        return call(spoiled)
