"""A network from images to images: down to small ones of many channels, and up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class UNet(Network):
    """forward(x [batch, 3, size, size]) -> [batch, classes, size, size]: U-Net (Ronneberger et al., arXiv:1505.04597).

    Convolutions are padded, so that the result has the size of the image. Images come in torch's usual layout, channels
    first; weights are random.
    """

    name: ClassVar[str] = "unet"
    batch: int = option(1, "images", ge=1)
    size: int = option(128, "height and width of an image; a multiple of 2 to the power of `depth`", ge=2)
    channels: int = option(16, "channels of the largest image; half the size has twice as many", ge=1)
    depth: int = option(4, "how often an image is halved", ge=1, le=16)
    classes: int = option(2, "channels of the result", ge=1)

    def check(self) -> None:
        if self.size % 2**self.depth:
            raise ConfigError(f"model.size={self.size} cannot be halved model.depth={self.depth} times.")

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.convolutions import DoubleConvolution, Up

        class UNetModule(torch.nn.Module):
            def __init__(self, channels: int, depth: int, classes: int) -> None:
                super().__init__()
                widths = [channels << level for level in range(depth + 1)]
                given = [3, *widths[:-1]]
                self.down = torch.nn.ModuleList(map(DoubleConvolution, given, widths))
                self.up = torch.nn.ModuleList(map(Up, widths[:0:-1], widths[-2::-1]))
                self.head = torch.nn.Conv2d(channels, classes, 1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.down[0](x)
                left = [x]
                for convolutions in self.down[1:]:
                    x = convolutions(torch.nn.functional.max_pool2d(x, 2))
                    left.append(x)
                for up, beside in zip(self.up, left[-2::-1], strict=True):
                    x = up(x, beside)
                return self.head(x)

        return UNetModule(self.channels, self.depth, self.classes)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.batch, 3, self.size, self.size)}
