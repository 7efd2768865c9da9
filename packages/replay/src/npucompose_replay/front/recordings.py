"""The recordings of one graph: by signature, in the order of their use."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from attrs import Factory, define

from npucompose_replay.cached_plans import PlanCache
from npucompose_replay.interface import Recording


@define(eq=False)
class Entry:
    """A recording in a cache."""

    recording: Recording
    glance: Hashable
    used: int
    """The number of the call that used it last."""
    replay_s: float = 0.0
    """What a replay takes, by the last one that was timed."""


@define(eq=False)
class Recordings:
    """`glance` is equal for all inputs of one signature, and nearly always different for others."""

    plans: PlanCache = Factory(PlanCache)
    """Of recordings that others replaced."""
    _entries: list[Entry] = Factory(list)
    """The one used last stands last."""
    _by_glance: dict[Hashable, list[Entry]] = Factory(dict)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def oldest(self) -> Entry:
        """The one that was used longest ago."""
        return self._entries[0]

    @property
    def newest(self) -> Entry:
        return self._entries[-1]

    def alike(self, glance: Hashable) -> Iterator[Entry]:
        """Those of this signature, perhaps; the one that came last first."""
        return reversed(self._by_glance.get(glance, ()))

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._by_glance.setdefault(entry.glance, []).append(entry)

    def use(self, entry: Entry, call: int) -> None:
        entry.used = call
        if entry is not self._entries[-1]:
            self._entries.remove(entry)
            self._entries.append(entry)

    def replace_oldest(self, wanted: Any) -> None:
        """Its plan stays, if there is room for it beside that of the signature that is `wanted`."""
        oldest = self.oldest
        self.plans.keep(oldest.glance, oldest.recording, wanted=wanted)
        self.drop(oldest)

    def drop(self, entry: Entry) -> None:
        self._entries.remove(entry)
        alike = self._by_glance[entry.glance]
        alike.remove(entry)
        if not alike:
            del self._by_glance[entry.glance]

    def clear(self) -> None:
        self._entries.clear()
        self._by_glance.clear()
        self.plans.clear()
