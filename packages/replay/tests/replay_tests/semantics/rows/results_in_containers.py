"""Results that live on in what Python has to keep them: dicts, attributes, queues, closures, generators."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch

from replay_tests.semantics.rows import Compiled, row


@row
def stored_in_a_dict(compiled: Compiled):
    f = compiled(lambda x: {"a": x + 1, "b": x * 2})
    kept: dict[str, Any] = {}

    def call(x: torch.Tensor) -> dict[str, torch.Tensor]:
        result = f(x)
        kept[f"call {len(kept)}"] = result["b"]
        return result

    return call, kept


@row
def stored_in_an_attribute(compiled: Compiled):
    class Remembers(torch.nn.Module):
        last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            self.last = y
            return y + 1

    module = Remembers()
    f = compiled(module)

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        f(x)
        before = module.last
        f(y)
        return before, module.last

    return call


@row
def stored_in_a_deque(compiled: Compiled):
    f = compiled(lambda x: x.abs())
    window: collections.deque[torch.Tensor] = collections.deque(maxlen=3)

    def call(x: torch.Tensor) -> torch.Tensor:
        window.append(f(x))
        return torch.stack(list(window)).sum(0)

    return call


@row
def stored_in_a_closure(compiled: Compiled):
    f = compiled(lambda x: x.sqrt())
    makers: list[Any] = []

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        y = f(x.abs())
        makers.append(lambda: y + 1)
        return [make() for make in makers]

    return call


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


@row
def stored_in_a_dataclass(compiled: Compiled):
    f = compiled(lambda x: x + 1)
    return lambda x, y: Pair(f(x), f(y))


class Named(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@row
def a_named_tuple_from_the_graph(compiled: Compiled):
    f = compiled(lambda x: Named(x.amin(0), x.amax(0)))
    return lambda x, y: (f(x).low, f(y).high, f(y).low)


@row
def results_of_a_generator(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        def forever():
            y = x
            while True:
                y = f(y)
                yield y

        stream = forever()
        return [next(stream) for _ in range(4)]

    return call


@row
def a_sorted_row_of_results(compiled: Compiled):
    f = compiled(lambda x: (x * x).sum())
    return lambda x: sorted((f(x + k) for k in (3, 1, 2)), key=float)


@row
def results_become_keys_of_a_cache(compiled: Compiled):
    f = compiled(lambda x: x * 0.5)
    cache: dict[int, torch.Tensor] = {}

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        for k in range(3):
            cache.setdefault(k, f(x + k))
        return list(cache.values())

    return call
