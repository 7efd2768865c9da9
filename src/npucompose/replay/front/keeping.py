"""Which signatures of a graph get a recording, and the plans of recordings that had to go. Knows no clock.

# Note [A recording has to be earned]
A capture takes as long as ten to fifty calls, so a signature that is called twice is cheaper without. The first two
of a graph are captured when they come: prefill and decode, the full batch and the last one. From then on captures may
take three hundredths of the time that calls take, whichever signature earned it: the next recording after some three
hundred calls, until every signature that keeps coming has one; and two hundred shapes that come twice cost hardly more
than eager.

# Note [Who takes whose place]
Where the limit is reached and recordings may be replaced, a new signature takes the place of the recording used longest
ago only if it was itself called since that one was used. Two hundred shapes in turns over 64 places would otherwise
replace each recording just before it is wanted: so 64 of them stay, and are found on every round. A set of shapes that
others follow is replaced when the others come for the second time.

# Note [Kept plans]
A recording whose plan was kept is made again without running the graph.
What is bulky went with the recording: buffers, its place in the arena, kernels that were set up. A plan holds Python
objects (some kilobytes for a step) and the graph's own constants.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose.replay import gate
from npucompose.replay.captured_graph import CapturedGraph, How
from npucompose.replay.interface import WhenNew
from npucompose.replay.memory.inputs import signature
from npucompose.replay.operands import Layout, over, sharing
from npucompose.replay.plan import Plan, Root

AT_ONCE = 2
"""So many signatures of a graph are captured when they first come."""
SHARE = 0.03
"""So much of the time that calls take may go into captures after the first two."""
_REMEMBERED = 4096
"""Signatures without a recording of which is known when they came last."""


@define(eq=False)
class Admission:
    when_new: WhenNew = "earned"
    calls_s: float = 0.0
    """What calls have taken, captures left out."""
    captures_s: float = 0.0
    """What captures have taken, the first two left out."""
    captures: int = 0
    calls: int = 0
    """Calls of which this was told: all but those that meet the recording that the call before them met."""
    _came: OrderedDict[Hashable, int] = field(factory=OrderedDict)

    def call(self) -> int:
        """Another call begins: its number."""
        self.calls += 1
        return self.calls

    def ran_eagerly(self, signature: Hashable, seconds: float) -> None:
        self.calls_s += seconds
        self._came[signature] = self.calls
        self._came.move_to_end(signature)
        if len(self._came) > _REMEMBERED:
            self._came.popitem(last=False)

    def captured(self, signature: Hashable, seconds: float) -> None:
        self._came.pop(signature, None)
        self.captures += 1
        if self.captures > AT_ONCE:
            self.captures_s += seconds

    def admits(self, signature: Hashable, cost_s: float, used_last: int | None) -> bool:
        """Whether `signature`, without a recording, gets one that takes about `cost_s` to make.

        `used_last` is the number of the call that last used the recording that would go; None where there is room.
        """
        if self.when_new == "at_once":
            return True
        if used_last is not None and self._came.get(signature, -1) < used_last:
            return False
        return self.captures < AT_ONCE or self.captures_s + cost_s <= SHARE * self.calls_s


MOST_STEPS = 20_000
"""So many steps the plans of one cache have together: some 30 MB."""
MOST_BYTES = 64 << 20
"""So many bytes of constants they hold together."""


@frozen(eq=False)
class KeptPlan:
    plan: Plan
    signature: tuple[str, ...]
    fixed: frozenset[int]
    how: How
    constants_bytes: int

    @classmethod
    def of(cls, recording: CapturedGraph) -> KeptPlan | None:
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
        for root in self.plan.roots:
            if root.kind == "input":
                _move(root, inputs[root.index])
        return CapturedGraph.of_plan(self.plan, inputs, **self.how)


@define(eq=False)
class KeptPlans:
    """The plans of a cache, by what its calls look like at a glance. The oldest go first when there are too many."""

    _plans: OrderedDict[Hashable, KeptPlan] = field(factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, glance: Hashable) -> bool:
        return glance in self._plans

    def keep(self, glance: Hashable, recording: Any, *, wanted: Hashable = None) -> None:
        """Keep the plan of a recording that goes; recordings without a plan (other devices') just go.

        The plan that is `wanted` next stays, whatever its age.
        """
        plan = KeptPlan.of(recording) if isinstance(recording, CapturedGraph) else None
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


def _move(root: Root, given: torch.Tensor) -> None:
    """Let the root of an input lie where this one does, with what the plan knows of its layout.

    Recordings that were made of the plan before have storages of their own.
    """
    assert root.tensor is not None
    if given.numel() == 0:
        return
    layout = Layout.of(root.tensor)
    begin = given.data_ptr() - layout.offset * layout.dtype.itemsize
    root.tensor = layout.over(over(begin, root.nbytes))
