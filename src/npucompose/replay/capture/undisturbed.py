"""How a capture runs: without gradients, autocast, other people's dispatch modes and collections of garbage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from npucompose import garbage


@contextlib.contextmanager
def undisturbed() -> Iterator[Sequence[TorchDispatchMode]]:
    """Yields the dispatch modes that are off inside, the innermost first.

    AOTAutograd puts a mode around the first call of what it compiled; it looks at every operator in Python, which takes
    longer than recording it.
    """
    with (
        garbage.kept(),
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
