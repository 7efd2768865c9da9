"""A key: `extensions.tally.limit`, which the pass double_negation reads."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.schema.sections import Section
from npucompose.table.options import Acts, option


@frozen(kw_only=True)
class Tally(Section):
    """How much is rewritten."""

    name: ClassVar[str] = "tally"
    limit: int = option(
        100,
        "double negations that are taken out of one graph at most",
        ge=0,
        acts=Acts(mode="compiles", can="compiles"),
    )
