"""What the rules of legality are asked about, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.table.modes import ModeSpec
from npucompose.targets.base import Target

NEVER, STRICTEST, STRICT, ALWAYS = (), ("all",), ("mode", "all"), ("off", "mode", "all")
"""Which `strict` refuses a request."""


@frozen(kw_only=True, eq=False)
class LegalityCase:
    """An experiment with the objects that its choices name."""

    experiment: Experiment
    target: Target
    passes: Sequence[tuple[str, Pass]] = ()

    @property
    def mode(self) -> ModeSpec:
        return self.experiment.mode.spec

    def can(self, ability: str) -> bool:
        """Whether the target has it in this mode: of what it supports, or of its capabilities."""
        support = self.target.support(self.mode.name)
        told = support if hasattr(support, ability) else self.target.capabilities(self.mode.name)
        return bool(getattr(told, ability))


class Objection(NamedTuple):
    """What some values of `strict` refuse, with this sentence; `idle` is listed where it is not refused."""

    refused_by: Sequence[str]
    sentence: str
    idle: Effective | None = None


def idle(
    option: str, requested: Any, why: str, refused_by: Sequence[str], *, effective: Any = None, sentence: str = ""
) -> Objection:
    """A request that takes no effect."""
    listed_as = Effective(option=option, requested=requested, effective=effective, why=why)
    return Objection(refused_by, sentence or f"{option}: {why}.", listed_as)


Rule = Callable[[LegalityCase], Iterable[Objection]]
