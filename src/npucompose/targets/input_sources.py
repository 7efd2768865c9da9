"""Where the inputs of a graph of Dynamo's come from, by torch's names of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import fx


def kind_of_source(source: str | None) -> Literal["parameter", "buffer"] | None:
    """Of which kind the module's tensor is that torch names so; None: it is none."""
    if source is None or not source.endswith("]"):
        return None
    return "parameter" if "._parameters[" in source else "buffer" if "._buffers[" in source else None


def sources_of(dynamo: fx.GraphModule) -> Iterator[str | None]:
    """Of each input of Dynamo's graph what torch calls it; None where that is not known."""
    for node in dynamo.graph.nodes:
        if node.op == "placeholder":
            source: Any = getattr(node.meta.get("grapharg"), "source", None)
            name: Any = getattr(source, "name", None)
            yield None if name is None else str(name() if callable(name) else name)
