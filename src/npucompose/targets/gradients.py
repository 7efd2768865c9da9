"""Calls that want gradients, in modes whose recordings are for inference: graphs run as AOTAutograd makes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.errors import CaptureError
from npucompose.streams import strip

if TYPE_CHECKING:
    from torch import fx

    from npucompose.targets.compilation import Backend

NOT_RECORDED = (
    "an input or a parameter requires grad: this call runs through AOTAutograd, forward and backward, without a "
    "recording, and so do all that want gradients. Under torch.no_grad() or with requires_grad_(False) it is recorded; "
    "mode=max-autotune fuses with gradients too; compile.partial=refuse makes this an error."
)


class Notices:
    """Warnings that are given once, until `torch._dynamo.reset()`."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, words: str) -> None:
        if words not in self._given:
            self._given.add(words)
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    def reset(self) -> None:
        self._given.clear()


def refuse_training(*_: Any) -> Any:
    """AOTAutograd's fw_compiler: it is asked only when a gradient is wanted."""
    raise CaptureError(
        "this mode records kernels for inference, and an input or parameter requires grad. "
        "Call the model under torch.no_grad() with requires_grad_(False), or use mode=max-autotune, which trains."
    )


def run_as_it_is(backend: Backend) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """AOTAutograd's fw_compiler and bw_compiler: the passes, in no streams, and the graph itself."""
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compile(aot: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        backend.notices.warn(NOT_RECORDED)
        backend.rewrite(aot, inputs).settle()
        if strip(aot.graph):
            aot.recompile()
        return make_boxed_func(aot.forward)

    return compile
