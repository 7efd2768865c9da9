"""How often one call of the model runs each of its graphs, asked where a run overwrites what the one before gave."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define, field


@define(eq=False)
class Repeated:
    """`watched(called, graph)` counts until `close()`; runs on other shapes are recorded apart, and count apart."""

    _seen: Counter[tuple[str, tuple[Any, ...]]] = field(factory=Counter)
    _open: bool = True

    def watched(self, called: Callable[..., Any], graph: str) -> Callable[..., Any]:
        @functools.wraps(called, updated=())
        def call(*args: Any) -> Any:
            if self._open:
                self._seen[graph, tuple(a.shape if isinstance(a, torch.Tensor) else a for a in args)] += 1
            return called(*args)

        return call

    def close(self) -> Mapping[str, int]:
        """{graph: runs}, of those that ran more than once."""
        self._open = False
        found: dict[str, int] = {}
        for (graph, _), runs in self._seen.items():
            found[graph] = max(runs, found.get(graph, 0))
        return {graph: runs for graph, runs in found.items() if runs > 1}
