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
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.bits import same_bytes
from npucompose.graphs.inherited import IN_DYNAMO, PATTERNS, seen_in


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


def rows_shown(function: Callable[..., Any], *inputs: Any, **named: Any) -> list[str]:
    """Of torch's own errors, those that the graphs of a call show."""
    found: dict[str, None] = {}

    def read(graph: fx.GraphModule, _: Any) -> Any:
        found.update(dict.fromkeys(one.row for one in seen_in(graph.graph, PATTERNS)))
        return make_boxed_func(graph.forward)

    def backend(graph: fx.GraphModule, given: Any) -> Any:
        found.update(dict.fromkeys(one.row for one in seen_in(graph.graph, IN_DYNAMO)))
        through = aot_autograd(fw_compiler=read, inference_compiler=read, keep_inference_input_mutations=True)
        return through(graph, given)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs, **named)
    return list(found)
