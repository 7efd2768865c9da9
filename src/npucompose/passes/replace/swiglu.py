"""silu of one half times the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from npucompose.passes.replace.pattern import Pattern


def _find(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


class SwiGlu(Pattern):
    """The fused operator takes both halves in one tensor, so they are put side by side first."""

    name: ClassVar[str] = "swiglu"

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(2, 3, 8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_find, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        gate, up = arguments
        return torch.ops.npu.npu_swiglu(torch.cat([gate, up], -1), -1)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        gate, up = values
        return gate.shape == up.shape and gate.dtype == up.dtype and gate.dim() > 1
