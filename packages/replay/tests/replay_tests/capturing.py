"""What the tests of capture share: graphs from functions, and a small torch.compile backend around GraphCache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from npucompose.recorder import LowerRequest
from npucompose.vendor.compiler import CompilerOptions
from npucompose_replay.front.graph_cache import GraphCache


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
