"""What the tests of capture share: graphs from functions, and a small torch.compile backend around GraphCache."""

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
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.bits import same_bytes
from npucompose.recorder import LowerRequest
from npucompose.replay.front.graph_cache import GraphCache
from npucompose.vendor.compiler import CompilerOptions


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


def request(graph_module: fx.GraphModule, static: frozenset[int] = frozenset()) -> LowerRequest:
    return LowerRequest(
        mode="reduce-overhead",
        graph_module=graph_module,
        example_inputs=(),
        static_inputs=static,
        options=CompilerOptions(),
    )


class CapturingBackend:
    """torch.compile(model, backend=CapturingBackend()): AOTAutograd's inference graphs, each in a GraphCache."""

    def __init__(self, **options: Any) -> None:
        self.options = {"capture_limit": 8, **options}
        self.caches: list[GraphCache] = []
        self.flat_inputs: list[Any] = []
        self.flat_outputs: list[Any] = []

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def refuse(*_: Any) -> Any:
            raise AssertionError("a training graph reached the inference backend")

        backend = aot_autograd(
            fw_compiler=refuse,
            inference_compiler=self._lower,
            keep_inference_input_mutations=True,
        )
        return backend(graph_module, example_inputs)

    def made(self, lowered: LowerRequest) -> GraphCache:
        return GraphCache(lowered, **self.options)

    def _lower(self, graph_module: fx.GraphModule, _example_inputs: Sequence[Any]) -> Callable[..., Any]:
        context = TracingContext.get()
        static = frozenset(context.fw_metadata.static_input_indices or ()) if context.fw_metadata else frozenset()
        cache = self.made(request(graph_module, static))
        self.caches.append(cache)

        def call(inputs: list[Any]) -> list[Any]:
            self.flat_inputs = list(inputs)
            self.flat_outputs = cache(inputs)
            return list(self.flat_outputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


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
