"""What adaptation rules would do to a model: the answer of `npucompose explain --adapt`. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen


@frozen(kw_only=True)
class Adaptation:
    """One node and the rule that takes it."""

    graph: str
    rule: str
    kind: str
    op: str
    node: str
    source: str = ""
    """The model's line; '' where torch kept none."""
    before: str
    """The node as text."""
    after: tuple[str, ...] = ()
    """The nodes that take its place; none where it is rejected."""
    rtol: float = 0.0
    atol: float = 0.0
    """The rule's contract; both 0 is bitwise."""
    range_check: bool = False
    rejected: str | None = None
    """Why the node is refused."""


@frozen(kw_only=True)
class DryRun:
    """What the rules would do; nothing was changed, recorded or run."""

    asked: Mapping[str, str]
    """{group: choice} of the experiment."""
    graphs: int = 0
    adaptations: tuple[Adaptation, ...] = ()
    """In the order in which the rules are applied: a node that a rule made may be taken by another one."""
    untouched: tuple[str, ...] = field(factory=tuple)
    """Nodes of an operator that some rule names, for which no rule holds, as text."""
    compiler: str | None = None
    """What the vendor's compiler said of the adapted graph, where it refused it."""

    @property
    def rejections(self) -> tuple[Adaptation, ...]:
        return tuple(one for one in self.adaptations if one.rejected is not None)
