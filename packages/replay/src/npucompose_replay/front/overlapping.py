"""Calls whose inputs overlap where those that the graph was made for did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from npucompose.graphs import written_inputs
from npucompose.recorder import LowerRequest
from npucompose_replay.operands import overlaps_written


@define(eq=False)
class Overlapping:
    request: LowerRequest
    _written: frozenset[int] | None = field(init=False, default=None)
    """Inputs that the graph writes; None until somebody asks."""

    def meet(self, inputs: Sequence[Any]) -> bool:
        """Whether an input is written that overlaps another one, and the caller can run that as eager does."""
        if not self.request.eager_at_hand:
            return False
        if self._written is None:
            given, graph = self.request.written, self.request.graph_module.graph
            self._written = written_inputs(graph) if given is None else given
        return overlaps_written(inputs, self._written, self.request.static_inputs)
