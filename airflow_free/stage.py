"""What a stage is, and the events that a run of stages tells. Knows no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import attrs
from attrs import frozen

from npucompose.visible import visible

Live = TypeVar("Live")
Facts = Mapping[str, Any]
"""Plain JSON: what a stage found out, as it goes to disk."""

Kind = Literal["started", "progress", "finished", "reused", "failed", "note"]


@frozen(kw_only=True)
class Event:
    """Something that happened in a run; travels from the worker to the terminal as JSON."""

    kind: Kind
    stage: str = ""
    fraction: float | None = None
    seconds: float | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if value not in (None, "")}

    @staticmethod
    def of_dict(data: Mapping[str, Any]) -> Event:
        """The inverse of `as_dict`, its texts as they may be shown; ValueError for anything else."""
        numbers = (data.get("fraction", 0.0), data.get("seconds", 0.0))
        texts = (data.get("stage", ""), data.get("text", ""))
        if (
            data.get("kind") not in get_args(Kind)
            or not set(data) <= {one.name for one in attrs.fields(Event)}
            or not all(type(one) in (int, float) and math.isfinite(one) for one in numbers)
            or not all(isinstance(one, str) for one in texts)
        ):
            raise ValueError("no event")
        shown: dict[str, Any] = {name: visible(v) if isinstance(v, str) else v for name, v in data.items()}
        return Event(**shown)


Tell = Callable[[Event], None]


def silent(event: Event) -> None:
    """A `Tell` for those who do not listen."""


class Stage(ABC, Generic[Live]):
    """A step with a result; skipped exactly when nothing it reads or needs changed.

    The facts go to disk. Live values (a compiled model, a recording) do not: a stage asks `live` for them, an object
    that the caller makes and whose methods remember what they made. So a stage whose needs were skipped gets its
    live values remade, and nobody writes a record for that.

        class Capture(Stage[Live]):
            name, needs, reads = "capture", ("compile",), ("target", "mode")

            def run(self, live, progress):
                return {"kernels": len(live.captured().kernels)}
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Stages whose facts or live values this one builds on: their keys are part of this stage's key."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of the experiment that the result depends on, beyond those that the needed stages read; dotted paths
    (`benchmark.min_calls`) name a part of a field."""
    measures: ClassVar[bool] = False
    """The result is a time; refused where a time means nothing."""

    @abstractmethod
    def run(self, live: Live, progress: Callable[[float], None]) -> Facts:
        """Do the work and return plain JSON; `progress(0.4)` says that two fifths are done."""
