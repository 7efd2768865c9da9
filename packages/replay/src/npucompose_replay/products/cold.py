"""What Inductor's contest of products is timed on: a weight that is as cold as a replay finds it.

Knows where Inductor times one way to compute a product on the CPU (torch/_inductor/runtime/benchmarking.py; torch 2.7
to 2.14).

# Note [Cold weights in a contest]
Inductor calls one way over and over, so that it has its weight in the cache from the second call on. In a model each
product finds there what the others have left. A contest of hot calls chose by how fast a kernel computes, not by how
well it reads: MKL's 64x384 by 384x1536 took 471 us and a template 465, and with a cold weight 576 and 526. So before
each call as many bytes are read as the graph has constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._inductor.runtime.benchmarking import Benchmarker
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.machine import Attendance
from npucompose_replay.inductor.cache import replaced
from npucompose_replay.products.timed_calls import in_turns

MOST_BYTES = 64 << 20
"""More than the caches that a core has for itself, or shares with a few; reading so much takes some milliseconds."""


def constants_of(graph_module: fx.GraphModule) -> int:
    """Bytes of the graph's constants; of a weight that MKL has packed both, because MKL keeps the plain one."""
    values = [getattr(graph_module, str(node.target), None) for node in graph_module.graph.find_nodes(op="get_attr")]
    return sum(value.numel() * value.dtype.itemsize for value in values if isinstance(value, torch.Tensor))


class Others:
    """So many bytes, MOST_BYTES at most, that stand for what else a model reads between two calls of a product."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = min(nbytes, MOST_BYTES)

    def read(self) -> None:
        with unset_fake_temporarily():
            self._memory.sum()

    @cached_property
    def _memory(self) -> torch.Tensor:
        """Written, so that it is memory of its own."""
        return torch.ones(self.nbytes // 4)


class ColdProducts:
    """Ways to compute the products of one graph, timed inside `timing`."""

    def __init__(self, read: int, limit_ms: float) -> None:
        self.others, self.limit_ms = Others(read), limit_ms
        """What is read before a call; what one contest may take."""
        self._ways = 0
        """Of the product at hand that are timed cold; 0 where none of its operands is a constant."""
        self.attended = 1.0
        """Of the time of its contest this process had a processor for so much, in the worst of its ways."""

    def product(self, choices: Sequence[Any], constants: Iterable[str]) -> None:
        """These are timed next. What is computed just before a product is not cold, and stays as it is."""
        self.attended = 1.0
        operands = {node.maybe_get_name() for choice in choices for node in choice.input_nodes}
        self._ways = len(choices) if operands & set(constants) else 0

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """See Note [Cold weights in a contest]."""
        hot: Any = Benchmarker.__dict__["benchmark_cpu"]

        def benchmark_cpu(benchmarker: Any, call: Callable[[], Any], *more: Any, **named: Any) -> float:
            attendance = Attendance()
            ms = self._cold_ms(call) if self._ways and self.others.nbytes else hot(benchmarker, call, *more, **named)
            self.attended = min(self.attended, attendance.share())
            return ms

        with replaced(Benchmarker, "benchmark_cpu", benchmark_cpu):
            yield

    def _cold_ms(self, call: Callable[[], Any]) -> float:
        """Milliseconds that three of four calls take at least: what comes in between makes a call longer, never
        shorter."""
        taken = sorted(in_turns({"way": [call]}, self.limit_ms / self._ways, self.others.read)[0]["way"])
        return taken[len(taken) // 4] / 1e3
