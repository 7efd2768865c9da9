"""Which signatures of a graph get a recording: what captures cost against what calls take. Knows no graph, no clock.

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
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from attrs import define, field

from npucompose.replay.interface import WhenNew

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
