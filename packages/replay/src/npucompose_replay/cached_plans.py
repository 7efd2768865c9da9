"""The plans of recordings that had to go.

# Note [Cached plans]
A recording whose plan is cached is made again without running the graph.
What is bulky went with the recording: buffers, its place in the arena, kernels that were set up. A plan holds Python
objects (some kilobytes for a step) and the graph's own constants.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from attrs import define, field, frozen

from npucompose_replay import gate
from npucompose_replay.captured_graph import CapturedGraph, How, lie_at
from npucompose_replay.memory.inputs import signature
from npucompose_replay.operands import sharing
from npucompose_replay.plan import Plan

MOST_STEPS = 20_000
"""So many steps the plans of one cache have together: some 30 MB."""
MOST_BYTES = 64 << 20
"""So many bytes of constants they hold together."""


@frozen(eq=False)
class CachedPlan:
    plan: Plan
    signature: tuple[str, ...]
    fixed: frozenset[int]
    how: How
    constants_bytes: int

    @classmethod
    def from_recording(cls, recording: CapturedGraph) -> CachedPlan | None:
        """None where the plan is good for one place in memory only (inputs overlapped when it was recorded), and where
        a trial judged its streams, of which a plan says nothing."""
        if recording.shares_inputs or recording.verdict is not None:
            return None
        plan = recording.plan
        nbytes = sum(root.nbytes for root in plan.roots if root.kind == "constant")
        return cls(plan, recording.signature, recording.fixed, recording.how, nbytes)

    def recording(self, inputs: Sequence[Any]) -> CapturedGraph | None:
        """A recording for these inputs; None where it would not be one of their signature. Nothing is run."""
        if gate.first_refused(inputs) or sharing(inputs) or signature(inputs, self.fixed) != self.signature:
            return None
        lie_at(self.plan, inputs)
        return CapturedGraph.from_plan(self.plan, inputs, **self.how)


@define(eq=False)
class PlanCache:
    """The plans of a cache, by what its calls look like at a glance. The oldest go first when there are too many."""

    _plans: OrderedDict[Hashable, CachedPlan] = field(factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, glance: Hashable) -> bool:
        return glance in self._plans

    def keep(self, glance: Hashable, recording: Any, *, wanted: Hashable = None) -> None:
        """Keep the plan of a recording that goes; recordings without a plan (other devices') just go.

        The plan that is `wanted` next stays, whatever its age.
        """
        plan = CachedPlan.from_recording(recording) if isinstance(recording, CapturedGraph) else None
        if plan is None:
            return
        self._plans[glance] = plan
        self._plans.move_to_end(glance)
        for oldest in list(self._plans):
            if self._fit():
                break
            if oldest != wanted:
                del self._plans[oldest]

    def recording(self, glance: Hashable, inputs: Sequence[Any]) -> CapturedGraph | None:
        """The recording of these inputs, made again; its plan is the recording's from now on."""
        plan = self._plans.pop(glance, None)
        return None if plan is None else plan.recording(inputs)

    def clear(self) -> None:
        self._plans.clear()

    def _fit(self) -> bool:
        plans = self._plans.values()
        steps = sum(len(plan.plan.steps) for plan in plans)
        return steps <= MOST_STEPS and sum(plan.constants_bytes for plan in plans) <= MOST_BYTES
