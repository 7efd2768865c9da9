"""What the convolutional networks compute, against the same in torch's functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npucompose.models.base import generator, inference, seeded
from npucompose.models.convolutional import ResNet18, UNet


def made(model: Any) -> Any:
    with seeded(1):
        return inference(model.network())


def image(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=generator(5, 0))


def normed(x: torch.Tensor, held: dict[str, torch.Tensor], name: str, stride: int, padding: int) -> torch.Tensor:
    x = functional.conv2d(x, held[f"{name}.0.weight"], None, stride, padding)
    statistics = (held[f"{name}.1.{one}"] for one in ("running_mean", "running_var", "weight", "bias"))
    return functional.batch_norm(x, *statistics)


def test_resnet18_is_eight_blocks_beside_shortcuts() -> None:
    net = made(ResNet18(channels=4, classes=5))
    held, x = net.state_dict(), image(32)
    assert all(held["stem.1.running_mean"] != 0)
    assert all(held["stem.1.running_var"] != 1)
    y = functional.max_pool2d(normed(x, held, "stem", 2, 3).relu(), 3, 2, 1)
    for block in range(8):
        stride = 2 if block in (2, 4, 6) else 1
        inner = normed(normed(y, held, f"blocks.{block}.first", stride, 1).relu(), held, f"blocks.{block}.second", 1, 1)
        beside = normed(y, held, f"blocks.{block}.shortcut", 2, 0) if stride == 2 else y
        y = (inner + beside).relu()
    assert y.shape == (2, 32, 1, 1)
    torch.testing.assert_close(net(x), net.head(y.mean((-1, -2))))


def test_unet_goes_down_and_up_again_with_what_it_had_on_the_way() -> None:
    net = made(UNet(channels=4, depth=2, classes=3))
    held, x = net.state_dict(), image(16)

    def twice(x: torch.Tensor, name: str) -> torch.Tensor:
        for one in ("first", "second"):
            x = functional.conv2d(x, held[f"{name}.{one}.weight"], held[f"{name}.{one}.bias"], padding=1).relu()
        return x

    def upward(x: torch.Tensor, beside: torch.Tensor, name: str) -> torch.Tensor:
        x = functional.conv_transpose2d(x, held[f"{name}.up.weight"], held[f"{name}.up.bias"], stride=2)
        return twice(torch.cat((beside, x), 1), f"{name}.convolutions")

    large = twice(x, "down.0")
    half = twice(functional.max_pool2d(large, 2), "down.1")
    least = twice(functional.max_pool2d(half, 2), "down.2")
    assert (large.shape, half.shape, least.shape) == ((2, 4, 16, 16), (2, 8, 8, 8), (2, 16, 4, 4))
    wanted = net.head(upward(upward(least, half, "up.0"), large, "up.1"))
    assert wanted.shape == (2, 3, 16, 16)
    torch.testing.assert_close(net(x), wanted)
