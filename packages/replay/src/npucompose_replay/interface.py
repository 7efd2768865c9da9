"""Recordings whatever device makes them, who watches their calls, and which signature gets one.

Knows neither torch nor a clock.

# Note [A recording has to be earned]
A capture takes as long as ten to fifty calls, so a signature that is called twice is cheaper without. The first two
of a graph are captured when they come: prefill and decode, the full batch and the last one. From then on there are two
ways to a recording. A signature whose own calls without one have taken as long as a capture has earned it: it comes
again and again, and whatever follows, it has cost at most twice what it would have cost to know. And captures may take
three hundredths of the time that all calls take, whichever signature earned it. So a batch that comes back in every
text of a server has its recording within its first hundred steps, and two hundred shapes that come twice cost hardly
more than eager.

# Note [Who takes whose place]
Where the limit is reached and recordings may be replaced, a new signature takes the place of the recording used longest
ago only if it was itself called since that one was used. Two hundred shapes in turns over 64 places would otherwise
replace each recording just before it is wanted: so 64 of them stay, and are found on every round. A set of shapes that
others follow is replaced when the others come for the second time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import define, field, frozen

from npucompose.recorder import Captured as Captured  # these three under the module that had them, until 0.3
from npucompose.recorder import Lowered as Lowered
from npucompose.recorder import LowerRequest as LowerRequest
from npucompose.schema.recording import WhenNew


class Constants(Protocol):
    """Tensors of the caller's that a graph has as constants."""

    native: Any
    """What a native front asks whether they hold (`executor/src/weights.h`); None: only Python can tell."""

    @property
    def tensors(self) -> Sequence[Any]: ...

    def holds(self) -> bool:
        """Whether none has changed."""
        ...

    def change(self) -> str | None:
        """`fc.weight was written to`; None where none has changed."""
        ...


class Recording(Protocol):
    """What a cache holds, whatever device made it."""

    seconds: float

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]: ...

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None: ...

    def facts(self) -> Mapping[str, Any]: ...


@frozen(eq=False)
class SeenCall:
    """A call of one graph: its recording (None: it ran as it is), inputs and results."""

    recording: Recording | None
    inputs: list[Any]
    outputs: list[Any]
    capture_limit: int
    constants: Constants | None = None
    """What the recording is only good for."""
    cut: str = ""
    """How the graph is cut, whose parts are seen too; empty for a graph that is not."""
    instead: str = ""
    """Who calls the kernels of a graph that is never recorded, and why; empty for every other."""


@define(eq=False)
class _Watcher:
    numbers: bool
    """Whether it wants recordings of the very numbers that are given, those too that a graph only counts."""
    thread: int = field(factory=threading.get_ident)
    calls: list[SeenCall] = field(factory=list)


watchers: list[_Watcher] = []
"""Of all threads: where there is none, a call has nothing to note."""


@contextlib.contextmanager
def watching(*, numbers: bool = True) -> Iterator[list[SeenCall]]:
    """The calls of graphs that this thread makes inside, in order; `numbers`: each for the very numbers it is given."""
    watcher = _Watcher(numbers)
    watchers.append(watcher)
    try:
        yield watcher.calls
    finally:
        watchers.remove(watcher)


def is_watched() -> bool:
    """Whether somebody watches the calls of this thread: they are made for the sake of their recordings."""
    return any(watcher.thread == threading.get_ident() for watcher in watchers)


def wants_numbers() -> bool:
    """Whether calls of this thread are watched for the very numbers that they are given."""
    return any(watcher.numbers and watcher.thread == threading.get_ident() for watcher in watchers)


def note(call: SeenCall) -> None:
    for watcher in watchers:
        if watcher.thread == threading.get_ident():
            watcher.calls.append(call)


AT_ONCE = 2
"""So many signatures of a graph are captured when they first come."""


SHARE = 0.03
"""So much of the time that calls take may go into captures after the first two."""


_REMEMBERED = 4096
"""Signatures without a recording of which is known when they came last."""


@define(eq=False)
class Admission:
    when_new: WhenNew = "earned"
    only_watched: bool = False
    """No call gets a recording by itself: somebody watches those that are to."""
    calls_s: float = 0.0
    """What calls have taken, captures left out."""
    captures_s: float = 0.0
    """What captures have taken, the first two left out."""
    captures: int = 0
    calls: int = 0
    """All calls but those that meet the recording that the call before them met."""
    _came: OrderedDict[Hashable, tuple[int, float]] = field(factory=OrderedDict)
    """Of a signature without a recording: the number of its last call, and what its calls have taken."""

    def call(self) -> int:
        """Another call begins: its number."""
        self.calls += 1
        return self.calls

    def ran_eagerly(self, signature: Hashable, seconds: float) -> None:
        self.calls_s += seconds
        self._came[signature] = self.calls, self._came.get(signature, (0, 0.0))[1] + seconds
        self._came.move_to_end(signature)
        if len(self._came) > _REMEMBERED:
            self._came.popitem(last=False)

    def forget(self, signature: Hashable) -> None:
        """What its calls have taken has earned it a recording: another one has to be earned again."""
        self._came.pop(signature, None)

    def captured(self, signature: Hashable, seconds: float) -> None:
        self.forget(signature)
        self.captures += 1
        if self.captures > AT_ONCE:
            self.captures_s += seconds

    def admits(self, signature: Hashable, cost_s: float, used_last: int | None) -> bool:
        """Whether `signature`, without a recording, gets one that takes about `cost_s` to make.

        `used_last` is the number of the call that last used the recording that would go; None where there is room.
        """
        if self.only_watched:
            return False
        if self.when_new == "at_once":
            return True
        last, own_s = self._came.get(signature, (-1, 0.0))
        if used_last is not None and last < used_last:
            return False
        earned = own_s >= cost_s or self.captures_s + cost_s <= SHARE * self.calls_s
        return self.captures < AT_ONCE or earned
