"""Linear layers in w8a8 with scales made while the model runs, as vllm-ascend's w8a8_dynamic calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class W8a8Linear(Network):
    """forward(x [tokens, hidden], residual) -> (x, residual): npu_add_rms_norm, then a SwiGLU network in int8."""

    name: ClassVar[str] = "w8a8_linear"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(512, "inner width", ge=1)
    dtype: Literal["float16", "bfloat16"] = option("float16", "of every tensor that is no int8")

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops
        from npucompose.models.grouped_layers import QuantisedLinear

        ops.define()

        class W8a8LinearModule(torch.nn.Module):
            """Norm of the sum, and two layers whose rows are made int8 one by one."""

            def __init__(self, hidden: int, ffn: int, dtype: torch.dtype) -> None:
                super().__init__()
                self.norm = torch.nn.Parameter(torch.ones(hidden, dtype=dtype))
                self.up = QuantisedLinear(hidden, 2 * ffn, dtype)
                self.down = QuantisedLinear(ffn, hidden, dtype)

            def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                normed, _, residual = torch.ops.npu.npu_add_rms_norm(x, residual, self.norm, 1e-6)
                return self.down(torch.ops.npu.npu_swiglu(self.up(normed))), residual

        return W8a8LinearModule(self.hidden, self.ffn, getattr(torch, self.dtype))

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return {name: normal(chance, self.tokens, self.hidden).to(dtype) for name in ("x", "residual")}
