"""Calls of Dynamo's graph itself, before a recording is due.

# Note [Calls without a recording]
They run Dynamo's graph itself: the way through AOTAutograd is only worth a replay. AOTAutograd's wrapper looks at
every input, and its graph calls, from Python, a kernel for each small step of what the model calls at once: a tenth to
a third of a call that takes a millisecond. Dynamo's graph calls what the model calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from npucompose_replay.interface import watching

if TYPE_CHECKING:
    from npucompose_replay.front.graph_cache import GraphCache


class AsTraced:
    """`call(*inputs)` of Dynamo's graph: `compiled(*inputs)`, or `traced(*inputs)` where `cache` would record nothing.

    Both give the same bits: whoever makes one of these has seen to that. `moving` are the inputs that are no parameters
    or buffers. See Note [Calls without a recording].
    """

    def __init__(
        self, compiled: Callable[..., Any], traced: Callable[..., Any], cache: GraphCache, moving: Sequence[int]
    ) -> None:
        self._compiled, self._traced, self._cache, self._moving = compiled, traced, cache, moving
        self._recorded: set[Hashable] = set()
        self._some_are_not = False
        self._last: Any = None

    def __call__(self, *inputs: Any) -> Any:
        if not self._some_are_not:
            outputs = self._compiled(*inputs)
            if self._cache.last is not self._last:  # not for each call that meets the recording of the one before
                self._note(self._at_a_glance(inputs))
            return outputs
        if self._cache.segmented is not None:  # its parts have recordings
            self._some_are_not = False
            return self._compiled(*inputs)
        glance = self._at_a_glance(inputs)
        if glance in self._recorded:
            outputs = self._compiled(*inputs)
            self._note(glance)
            return outputs
        if self._cache.would_record(glance, inputs):
            with watching(numbers=False):  # what is due now is recorded, whatever the cache's own glance at it may be
                outputs = self._compiled(*inputs)
            self._note(glance)
            return outputs
        begun = perf_counter()
        outputs = self._traced(*inputs)
        self._cache.ran_eagerly(glance, perf_counter() - begun)
        return outputs

    def _note(self, glance: Hashable) -> None:
        """Whether the call that is over had a recording."""
        self._last = self._cache.last
        if self._last is None:
            self._some_are_not = self._cache.segmented is None
            self._recorded.discard(glance)
        else:
            self._recorded.add(glance)

    def _at_a_glance(self, inputs: tuple[Any, ...]) -> Hashable:
        values = [inputs[i] for i in self._moving]
        return tuple([value.shape if isinstance(value, torch.Tensor) else value for value in values])
