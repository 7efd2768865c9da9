"""A model: adds, and negates twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.models.base import Inputs, Network
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import Generator, nn


@frozen(kw_only=True)
class Zigzag(Network):
    """forward(x [size]) -> x and a one for each turn."""

    name: ClassVar[str] = "zigzag"
    turns: int = option(3, "how often it is negated twice", ge=1)
    size: int = option(8, "numbers in x", ge=1)

    def network(self) -> nn.Module:
        from torch import nn

        turns = self.turns

        class ZigzagNetwork(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(turns):
                    x = x.neg().neg() + 1
                return x

        return ZigzagNetwork()

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {"x": torch.randn(self.size, generator=chance)}
