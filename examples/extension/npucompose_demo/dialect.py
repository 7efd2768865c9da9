"""A recipe dialect: the settings of a server that does not exist."""

from __future__ import annotations

from typing import ClassVar

from npucompose.recipe.dialects import Dialect, Settings
from npucompose.table.modes import ACLGRAPH


class ToyServe(Dialect):
    """`toy_graphs: true` captures graphs of torchair; anything else runs in eager."""

    name: ClassVar[str] = "toyserve"
    files: ClassVar[str] = "toyserve (toy_graphs)"
    keys: ClassVar[tuple[str, ...]] = ("toy_graphs",)

    def read(self, settings: Settings) -> None:
        if settings.take("toy_graphs"):
            settings.compiles("torchair", {}, mode=ACLGRAPH, dynamic=False, cached=False, at="toy_graphs")
        else:
            settings.eager = True
