"""The ways to run a program: both fronts, both executors, both modes; eager and aot_eager to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from attrs import frozen

import npucompose
from replay_tests.semantics.rows import Row

Mode = Literal["reduce-overhead", "max-autotune"]
Front = Literal["backend", "compile"]
WITH_BREAKS = "compile.fullgraph=false"
"""Programs of this folder may break their graphs; `npucompose.compile` refuses that where it is not asked for."""


@frozen(kw_only=True)
class Way:
    """`way(row)` is what the row gets as `compiled`."""

    front: Front
    mode: Mode
    executor: Literal["native", "portable"] | None = None
    """None where the target chooses."""
    more: tuple[str, ...] = ()
    """Choices beside those of the mode and of the row."""

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.front, self.mode, self.executor) if part)

    @property
    def exact(self) -> bool:
        """Whether results are eager's bit for bit; where Inductor makes kernels they are not."""
        return self.mode == "reduce-overhead"

    @property
    def fuses(self) -> bool:
        return self.mode == "max-autotune"

    def choices(self, row: Row) -> list[str]:
        if self.fuses:  # without the second choice Inductor draws random numbers of its own
            return [f"mode={self.mode}", "inductor.fallback_random=true", *row.overrides, *self.more]
        of_replays = (f"target.executor={self.executor}", *row.overrides, *row.recording, *self.more)
        return [f"mode={self.mode}", *of_replays]

    def __call__(self, row: Row) -> Callable[[Any], Any]:
        choices = self.choices(row)
        if self.front == "compile":
            return lambda function: npucompose.compile(function, *choices, WITH_BREAKS)
        options: Mapping[str, Any] = dict(choice.split("=", 1) for choice in choices)
        return lambda function: torch.compile(function, backend="npucompose", options=options)


WAYS: tuple[Way, ...] = (
    *(
        Way(front=front, mode="reduce-overhead", executor=executor)
        for front in ("backend", "compile")
        for executor in ("native", "portable")
    ),
    *(Way(front=front, mode="max-autotune") for front in ("backend", "compile")),
)
BY_ID: Mapping[str, Way] = {way.id: way for way in WAYS}
FAST = (BY_ID["backend-reduce-overhead-native"], BY_ID["compile-reduce-overhead-native"])
"""What `make test` runs rows in, in turns."""


def eagerly(function: Any) -> Any:
    return function


def by_inductor(function: Any) -> Any:
    """What torch's own compiler makes of it."""
    return torch.compile(function, backend="inductor", options={"fallback_random": True})


def as_traced(function: Any) -> Any:
    """What torch's tracing alone makes of it."""
    return torch.compile(function, backend="aot_eager")
