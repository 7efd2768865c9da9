"""Which input of Dynamo's graph a placeholder of AOTAutograd's graph is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

_OTHERS = ("tangents", "fwd_", "bwd_")
"""AOTAutograd's names of gradients, seeds and offsets."""


def places(placeholders: Sequence[fx.Node], known: int) -> Iterator[int | None]:
    """For each placeholder its place among Dynamo's `known` inputs; None for what is none of them.

    torch 2.9 and later write it down (`desc`). Before, Dynamo's inputs are the last ones, behind the parameters and
    buffers that its module holds, except in a graph of a backward pass or of random numbers, where nobody says.
    """
    held = len(placeholders) - known
    told = held >= 0 and not any(node.name.startswith(_OTHERS) for node in placeholders)
    for position, node in enumerate(placeholders):
        desc = node.meta.get("desc")
        place = getattr(desc, "idx", None) if desc is not None else position - held if told else None
        yield place if place is not None and 0 <= place < known else None
