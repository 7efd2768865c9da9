"""Models of few operators, each made to show one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn

SIZES = (8, 16, 32, 64)
"""Of the squares of tiny_ops."""


@frozen(kw_only=True)
class Add(Network):
    """forward(x, y) -> x + y."""

    name: ClassVar[str] = "add"
    size: int = option(64, "both tensors are size × size", ge=1)

    def network(self) -> nn.Module:
        import torch

        class AddModule(torch.nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return x + y

        return AddModule()

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {name: normal(chance, self.size, self.size) for name in ("x", "y")}


@frozen(kw_only=True)
class MmAbsSub(Network):
    """forward(x) -> mm(x, x) + (abs(x) - x)."""

    name: ClassVar[str] = "mm_abs_sub"
    size: int = option(256, "x is size × size", ge=1)

    def network(self) -> nn.Module:
        import torch

        class MmAbsSubModule(torch.nn.Module):
            """`mm(x, x)` needs nothing of `abs(x) - x`, so the two can run on two streams; the sum joins them."""

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                product = torch.mm(x, x)
                return product + torch.sub(torch.abs(x), x)

        return MmAbsSubModule()

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.size, self.size)}


@frozen(kw_only=True)
class LinearScalar(Network):
    """forward(x, times) -> linear(x) * times + shift.

    `times` is a constant of a static graph and a symbol of a dynamic one; with `vary` it grows by 1 each step, so a
    static graph is compiled again for each.
    """

    name: ClassVar[str] = "linear_scalar"
    batch: int = option(8, "rows of x", ge=1)
    features: int = option(64, "columns of x", ge=1)
    times: int = option(3, "the number", ge=2)
    vary: bool = option(False, "step n gets times + n")

    def network(self) -> nn.Module:
        import torch

        class LinearScalarModule(torch.nn.Module):
            """One input of each kind: a parameter, a buffer, a tensor and a number of Python."""

            shift: torch.Tensor

            def __init__(self, features: int) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(features, features) / features**0.5)
                self.register_buffer("shift", torch.randn(features))

            def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
                return torch.nn.functional.linear(x, self.weight) * times + self.shift

        return LinearScalarModule(self.features)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        x = normal(chance, self.batch, self.features)
        return {"x": x, "times": self.times + step * self.vary}


@frozen(kw_only=True)
class Mlp(Network):
    """forward(x) with x [batch, hidden] -> [batch, hidden]."""

    name: ClassVar[str] = "mlp"
    batch: int = option(32, "rows of x", ge=1)
    hidden: int = option(256, "width of every layer", ge=1)
    layers: int = option(3, "linear layers", ge=1)

    def network(self) -> nn.Module:
        import torch

        class MlpModule(torch.nn.Module):
            def __init__(self, hidden: int, layers: int) -> None:
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(layers))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers[:-1]:
                    x = torch.nn.functional.gelu(layer(x))
                return self.layers[-1](x)

        return MlpModule(self.hidden, self.layers)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.batch, self.hidden)}


@frozen(kw_only=True)
class TinyOps(Network):
    """forward(x8, x16, x32, x64), squares of that size, each followed through mm, add, relu, mul again and again."""

    name: ClassVar[str] = "tiny_ops"
    count: int = option(200, "operators in all", ge=1)

    def network(self) -> nn.Module:
        import torch

        class TinyOpsModule(torch.nn.Module):
            """`count` operators, in turn mm, add, relu, mul; each four work on the next of the sizes 8, 16, 32, 64."""

            def __init__(self, count: int) -> None:
                super().__init__()
                self.count = count
                self.weights = torch.nn.ParameterList(torch.randn(n, n) / n**0.5 for n in SIZES)
                self.biases = torch.nn.ParameterList(torch.randn(n, n) for n in SIZES)

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

        return TinyOpsModule(self.count)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {f"x{n}": normal(chance, n, n) for n in SIZES}


@frozen(kw_only=True)
class ParallelBranches(Network):
    """forward(x [size, size]) -> left chain(x) + right chain(x)."""

    name: ClassVar[str] = "parallel_branches"
    size: int = option(256, "every matrix is size × size", ge=1)
    depth: int = option(4, "products in each chain", ge=1)

    def network(self) -> nn.Module:
        import torch

        class ParallelBranchesModule(torch.nn.Module):
            """Two chains of matrix products that need nothing of each other, and their sum."""

            def __init__(self, size: int, depth: int) -> None:
                super().__init__()
                self.left = torch.nn.ParameterList(torch.randn(size, size) / size**0.5 for _ in range(depth))
                self.right = torch.nn.ParameterList(torch.randn(size, size) / size**0.5 for _ in range(depth))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                left = right = x
                for weight in self.left:
                    left = torch.mm(left, weight)
                for weight in self.right:
                    right = torch.mm(right, weight)
                return left + right

        return ParallelBranchesModule(self.size, self.depth)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.size, self.size)}


@frozen(kw_only=True)
class ConvNhwc(Network):
    """forward(x [batch, 3, size, size], channels last) -> [batch, classes]."""

    name: ClassVar[str] = "conv_nhwc"
    batch: int = option(1, "images", ge=1)
    size: int = option(112, "height and width of an image", ge=8)
    channels: int = option(32, "channels behind the first convolution; twice as many behind the second", ge=1)
    classes: int = option(10, "width of the result", ge=1)

    def network(self) -> nn.Module:
        import torch

        class ConvNhwcModule(torch.nn.Module):
            """Convolution, pooling, convolution, mean over the image, linear; channels last throughout."""

            def __init__(self, channels: int, classes: int) -> None:
                super().__init__()
                self.stem = torch.nn.Conv2d(3, channels, 3, stride=2, padding=1)
                self.body = torch.nn.Conv2d(channels, 2 * channels, 3, padding=1)
                self.head = torch.nn.Linear(2 * channels, classes)
                self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = torch.nn.functional.max_pool2d(torch.relu(self.stem(x)), 2)
                x = torch.nn.functional.avg_pool2d(torch.relu(self.body(x)), 2)
                return self.head(x.mean((2, 3)))

        return ConvNhwcModule(self.channels, self.classes)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        x = torch.randn(self.batch, 3, self.size, self.size, generator=chance)
        return {"x": x.contiguous(memory_format=torch.channels_last)}
