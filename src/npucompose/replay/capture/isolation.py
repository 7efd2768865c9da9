"""A capture without gradients, autocast, others' dispatch modes or garbage collection; how its changes are undone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import define, field
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from npucompose import garbage
from npucompose.replay.capture.ledger import bytes_of
from npucompose.replay.plan import Layout


@contextlib.contextmanager
def isolated_capture() -> Iterator[Sequence[TorchDispatchMode]]:
    """Yields the dispatch modes that are off inside, the innermost first.

    AOTAutograd puts a mode around the first call of what it compiled; it looks at every operator in Python, which takes
    longer than recording it.
    """
    with (
        garbage.gc_paused(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        _disable_current_modes() as modes,
    ):
        yield tuple(mode for mode in modes if mode is not None)


def under(modes: Sequence[TorchDispatchMode], operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`operator(*args, **kwargs)` with these modes on again: they may have something to say about a stranger's."""
    with contextlib.ExitStack() as stack:
        for mode in reversed(modes):
            stack.enter_context(mode)
        return operator(*args, **kwargs)


aten = torch.ops.aten

_BY_ELEMENTS = frozenset(
    {aten.scatter_.src, aten.scatter_.value, aten.scatter_add_.default, aten.scatter_reduce_.two},
)
"""`op(x, dim, index, …)` writes `x.gather(dim, index)` and no other element."""
_BY_ROWS = frozenset(
    {
        aten.index_copy_.default,
        aten.index_add_.default,
        aten.index_fill_.int_Scalar,
        aten.index_fill_.int_Tensor,
    }
)
"""`op(x, dim, index, …)` writes `x.index_select(dim, index)` and no other element."""
_FEW = 8
"""An element by its index takes as long as so many in a row."""


@define(eq=False)
class Undo:
    """`about_to_write(…)` and `about_to_draw(…)` before each change; `restore()` undoes all of them, the last first."""

    _changes: list[Callable[[], Any]] = field(factory=list)

    def about_to_write(self, place: torch.Tensor, op: OpOverload, args: Sequence[Any]) -> None:
        """`op(*args)` is going to write `place`. Where a few elements of it are named, these are all that is kept."""
        if not (args and args[0] is place and self._named_elements(place, op, args[1:3])):
            low, high = Layout.of(place).span()
            whole = bytes_of(place.untyped_storage())[low:high]
            before = whole.clone()
            self._changes.append(lambda: whole.copy_(before))

    def about_to_draw(self, generator: torch.Generator) -> None:
        state = generator.get_state()
        self._changes.append(lambda: generator.set_state(state))

    def restore(self) -> None:
        while self._changes:
            self._changes.pop()()

    def _named_elements(self, place: torch.Tensor, op: OpOverload, named: Sequence[Any]) -> bool:
        """A cache of keys as long as the longest prompt gets one row in each step."""
        rows = op in _BY_ROWS
        if len(named) < 2 or not (rows or op in _BY_ELEMENTS) or place.is_conj() or place.is_neg():
            return False
        dim, index = named[0], named[1].clone()  # another step may write the index itself
        try:
            before = place.index_select(dim, index) if rows else place.gather(dim, index)
        except (RuntimeError, IndexError):  # an index that is none: the operator is going to say so
            return False
        if before.numel() * _FEW > place.numel():
            return False
        put = place.index_copy_ if rows else place.scatter_
        self._changes.append(lambda: put(dim, index, before))
        return True
