"""How a graph was cut into recordings and operators that run as they are between them. Knows no graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from npucompose.schema.effective import Effective

Partial = Literal["cut", "refuse"]
PARTIAL: tuple[Partial, ...] = ("cut", "refuse")
SHOWN = 3
"""Operators that a line of text names; the report has all."""


@frozen(kw_only=True)
class Outside:
    """An operator that stands outside of all recordings, and why."""

    node: str
    operator: str
    reason: str
    source: str = ""
    """`model.py:41: y = torch.cond(…)`; empty where nobody knows the line."""

    @property
    def words(self) -> str:
        """`cond at model.py:41`."""
        place = self.source.split(": ", 1)[0].replace("\\", "/").rpartition("/")[2]
        return f"{self.operator} at {place}" if place else self.operator


@frozen(kw_only=True)
class Partition:
    """One graph: so many recorded segments, and what runs between them."""

    segments: int = 1
    outside: tuple[Outside, ...] = ()

    @property
    def words(self) -> str:
        """`3 segments, 2 operators outside recordings: cond at model.py:41, nonzero at model.py:50`."""
        if not self.outside:
            return counted(self.segments, "segment")
        count = counted(len(self.outside), "operator")
        return f"{counted(self.segments, 'segment')}, {count} outside recordings: {named(self.outside)}"


def refused_on_npu(target: str, outside: Iterable[Outside]) -> tuple[Effective, ...]:
    """What a run on this target would not get on an NPU: TorchAir cuts no graph."""
    found = tuple(outside)
    if not found:
        return ()
    return (Effective(option="target", requested=target, effective=target, why=npu_words(found)),)


def npu_words(outside: Iterable[Outside]) -> str:
    """`target=npu refuses this graph: cond at model.py:41`."""
    return f"target=npu refuses this graph: {named(outside)}"


def named(outside: Iterable[Outside]) -> str:
    """The first of them by operator and line; one that stands on one line several times is named once."""
    words = list(dict.fromkeys(one.words for one in outside))
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
