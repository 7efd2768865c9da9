"""Networks of convolutions: an image classifier with shortcuts, and a network from images to images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


STAGES = 4
BLOCKS = 2
"""Of each stage."""


@frozen(kw_only=True)
class ResNet18(Network):
    """forward(x [batch, 3, size, size]) -> [batch, classes]: ResNet-18 (He et al., arXiv:1512.03385, table 1).

    Images come in torch's usual layout, channels first; weights are random.
    """

    name: ClassVar[str] = "resnet18"
    batch: int = option(1, "images", ge=1)
    size: int = option(128, "height and width of an image", ge=1)
    channels: int = option(64, "channels of the first stage; each further stage has twice as many", ge=1)
    classes: int = option(1000, "width of the result", ge=1)

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import BasicBlock, Normed

        class ResNet18Module(torch.nn.Module):
            """A convolution of 7×7 and a pooling, four stages of blocks, the mean over the image, linear."""

            def __init__(self, channels: int, classes: int) -> None:
                super().__init__()
                self.stem = Normed(3, channels, 7, 2)
                blocks: list[torch.nn.Module] = []
                given = channels
                for stage in range(STAGES):
                    for block in range(BLOCKS):
                        blocks.append(BasicBlock(given, channels << stage, 2 if stage and not block else 1))
                        given = channels << stage
                self.blocks = torch.nn.ModuleList(blocks)
                self.head = torch.nn.Linear(given, classes)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = torch.nn.functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
                for block in self.blocks:
                    x = block(x)
                return self.head(x.mean((2, 3)))

        return ResNet18Module(self.channels, self.classes)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.batch, 3, self.size, self.size)}


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

        from npucompose.models.layers import DoubleConvolution, Up

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
