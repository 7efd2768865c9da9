"""Layers of convolutional networks. Imports torch: a model imports this inside `network`."""

from __future__ import annotations

import torch
from torch import nn


def convolution(given: int, channels: int, kernel: int, stride: int = 1, *, bias: bool = True) -> nn.Conv2d:
    """Padded so that stride 1 keeps an image's size; weights as He et al. draw them (arXiv:1502.01852)."""
    made = nn.Conv2d(given, channels, kernel, stride, kernel // 2, bias=bias)
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    return made


class Normed(nn.Sequential):
    """A convolution and its batch norm, with statistics that a training could have left: neither 0 nor 1."""

    def __init__(self, given: int, channels: int, kernel: int, stride: int = 1) -> None:
        norm = nn.BatchNorm2d(channels)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        super().__init__(convolution(given, channels, kernel, stride, bias=False), norm)


class BasicBlock(nn.Module):
    """Two convolutions of 3×3 beside a shortcut (He et al., arXiv:1512.03385, figure 5 left and option B)."""

    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = Normed(given, channels, 3, stride), Normed(channels, channels, 3)
        nn.init.constant_(self.second[1].weight, 0.5)  # a sum of many blocks keeps its size  # pyright: ignore
        straight = stride == 1 and given == channels
        self.shortcut = nn.Identity() if straight else Normed(given, channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class DoubleConvolution(nn.Module):
    """Two convolutions of 3×3, each with a ReLU behind it."""

    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.first, self.second = convolution(given, channels, 3), convolution(channels, channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class Up(nn.Module):
    """An image of twice the size beside what the way down had of that size, then two convolutions."""

    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(given, channels, 2, stride=2)
        self.convolutions = DoubleConvolution(2 * channels, channels)

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        return self.convolutions(torch.cat((beside, self.up(x)), 1))
