"""vLLM's static-graph wrapper: what it wraps is recorded when vLLM captures, and replayed when vLLM replays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vllm.forward_context import (  # pyright: ignore[reportMissingImports]
    get_forward_context,
    is_forward_context_available,
)
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]

from npucompose import recorder
from npucompose.errors import CaptureError, SignatureError
from npucompose.recorder import Handle

logger = init_logger("vllm.npucompose")


class RecordedGraph:
    """In place of `vllm.compilation.cuda_graph.CUDAGraphWrapper`, around a piece that this package compiled, or around
    a model that is one such piece.

    A batch descriptor that vLLM dispatches in `runtime_mode` has one recording; the rest calls `runnable`. What runs
    no recording of ours, or several, is called as it is, and said.
    """

    def __init__(self, runnable: Callable[..., Any], vllm_config: Any, runtime_mode: Any, **_: Any) -> None:
        self.runnable, self.vllm_config, self.runtime_mode = runnable, vllm_config, runtime_mode
        self._recorder = recorder.needed("a graph is not recorded")
        self._handles: dict[Any, Handle | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runnable, name)

    def unwrap(self) -> Callable[..., Any]:
        return self.runnable

    def clear_graphs(self) -> None:
        self._handles.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        context = get_forward_context() if is_forward_context_available() else None
        if context is None or context.cudagraph_runtime_mode != self.runtime_mode:
            return self.runnable(*args, **kwargs)
        batch = context.batch_descriptor
        handle = self._handles.get(batch)
        if handle is not None:
            with suppress(SignatureError):  # weights lie elsewhere
                return handle(*args, **kwargs)
        elif batch in self._handles:
            return self.runnable(*args, **kwargs)
        return self._recorded(batch, args, kwargs)

    def _recorded(self, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result, handle = self._recorder.call_and_detach(self.runnable, args, kwargs, outputs="keep")
        if not isinstance(handle, CaptureError):
            self._handles[batch] = handle
        else:
            self._handles[batch] = None
            logger.warning("%s is not replayed by its wrapper: %s", batch, handle)
        return result
