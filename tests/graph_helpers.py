"""Graphs from functions, and calls of several threads or of one."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.bits import same_bytes


def traced(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """The aten graph of `function`, as written: no functionalization, so in-place operators stay."""
    with torch.no_grad():
        return make_fx(function)(*copy.deepcopy(inputs))


def built(make: Callable[[fx.Graph, list[fx.Node]], Any], count: int) -> fx.GraphModule:
    """A graph written by hand: `make(graph, placeholders)` returns what the output node returns."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"x{i}") for i in range(count)]
    graph.output(make(graph, placeholders))
    return fx.GraphModule(torch.nn.Module(), graph)


def openmp_of_torch() -> ctypes.CDLL:
    """GNU's OpenMP, as this process has it already."""
    torch.ones(1 << 16).sum()
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    return ctypes.CDLL(next(word for word in mapped if "libgomp" in word))


def same(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """As many, bit for bit."""
    return len(got) == len(expected) and all(same_bytes(a, b) for a, b in zip(got, expected, strict=True))


def in_threads(work: Callable[[int], None]) -> None:
    """`work(0)` to `work(3)` at the same time; returns when all have ended."""
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """With one intra-op thread; kernels need not be tried on fewer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
