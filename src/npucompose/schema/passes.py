"""What one pass did to one graph: a line of report.json's `passes`. Knows no graph."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs import frozen


@frozen(kw_only=True)
class PassRecord:
    """`PassRecord(name="cse", stage="pre", matches=2, nodes_before=9, nodes_after=7, seconds=0.0004, exact=True)`."""

    name: str
    """The label in YAML; the pass's own name where the label says nothing else."""
    stage: Literal["pre", "post"]
    matches: int
    nodes_before: int
    nodes_after: int
    seconds: float
    exact: bool

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)
