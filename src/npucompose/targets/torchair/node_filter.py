"""The function that the genuine configuration takes for a filter of nodes; ejected scripts hold its text."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any


def node_filter(patterns: tuple[str, ...]) -> Callable[[Any], Any]:
    """f(node) -> node or None, as `debug.data_dump.filter` wants it: `node_filter(("mm", "aten.add*"))`.

    A pattern is compared with the node's name, the whole operator (`aten.mm.default`) and the operator without its
    overload (`aten.mm`).
    """

    def chosen(node: Any) -> Any:
        called = str(node.target)
        names = (node.name, called, called.rpartition(".")[0])
        return node if any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns) else None

    return chosen
