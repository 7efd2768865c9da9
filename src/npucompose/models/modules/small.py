"""Networks of few operators, each made to show one thing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class MmAbsSub(nn.Module):
    """`mm(x, x)` needs nothing of `abs(x) - x`, so the two can run on two streams; the sum joins them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x, x)
        return product + torch.sub(torch.abs(x), x)


class LinearScalar(nn.Module):
    """One input of each kind: a parameter, a buffer, a tensor and a number of Python."""

    shift: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) / features**0.5)
        self.register_buffer("shift", torch.randn(features))

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        return functional.linear(x, self.weight) * times + self.shift


class Mlp(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = functional.gelu(layer(x))
        return self.layers[-1](x)


class TinyOps(nn.Module):
    """`count` operators, in turn mm, add, relu, mul; each four of them work on the next of the sizes 8, 16, 32, 64."""

    SIZES = (8, 16, 32, 64)

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.weights = nn.ParameterList(torch.randn(n, n) / n**0.5 for n in self.SIZES)
        self.biases = nn.ParameterList(torch.randn(n, n) for n in self.SIZES)

    def forward(
        self, x8: torch.Tensor, x16: torch.Tensor, x32: torch.Tensor, x64: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        values = [x8, x16, x32, x64]
        for step in range(self.count):
            which = (step // 4) % len(values)
            values[which] = self._one(step % 4, which, values[which])
        return tuple(values)

    def _one(self, kind: int, which: int, x: torch.Tensor) -> torch.Tensor:
        if kind == 0:
            return torch.mm(x, self.weights[which])
        if kind == 1:
            return x + self.biases[which]
        return torch.relu(x) if kind == 2 else x * 0.9


class ParallelBranches(nn.Module):
    """Two chains of matrix products that need nothing of each other, and their sum."""

    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        self.left = nn.ParameterList(torch.randn(size, size) / size**0.5 for _ in range(depth))
        self.right = nn.ParameterList(torch.randn(size, size) / size**0.5 for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = right = x
        for weight in self.left:
            left = torch.mm(left, weight)
        for weight in self.right:
            right = torch.mm(right, weight)
        return left + right


class ConvNhwc(nn.Module):
    """Convolution, pooling, convolution, mean over the image, linear: a small classifier, channels last throughout."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.body = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.head = nn.Linear(2 * channels, classes)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.stem(x)), 2)
        x = functional.avg_pool2d(torch.relu(self.body(x)), 2)
        return self.head(x.mean((2, 3)))
