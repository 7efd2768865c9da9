"""What the networks of Paddle's operators compute, against torch's own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from npucompose.models.base import generator
from npucompose_extras.paddle import Paddle


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(5, 0))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_relu_s_gradient_and_the_loss_are_torchs() -> None:
    out, dout = values(3, 5).relu(), values(3, 5)
    close(Paddle(operator="relu_grad").network()(out, dout), dout * (out > 0))
    x, label = values(4, 3).log_softmax(1), torch.tensor([0, 2, 1, 2])
    loss, weight = Paddle(operator="nll_loss").network()(x, label)
    weights = torch.tensor([1.0, 2.0, 3.0])
    close(loss, functional.nll_loss(x, label, weights))
    assert weight.item() == 1 + 3 + 2 + 3


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["max", "avg", "both"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("ceil", [False, True])
def test_poolings_follow_one_another(kind: str, layers: int, layout: str, ceil: bool) -> None:
    options: Any = {"data_format": layout, "pooling_type": kind, "ceil_mode": ceil, "layers": layers}
    net = Paddle(operator="pool2d", **options).network()
    x = values(2, 3, 7, 7)

    def pooled(pool: Any) -> torch.Tensor:
        y = pool(x, 2, 2, 0, ceil_mode=ceil)
        for _ in range(layers - 1):
            y = pool(y.relu(), 2, 1, 0, ceil_mode=ceil)
        return y

    pools = {"max": [functional.max_pool2d], "avg": [functional.avg_pool2d]}
    pools["both"] = pools["max"] + pools["avg"]
    wanted = sum(pooled(pool) for pool in pools[kind])
    assert isinstance(wanted, torch.Tensor)
    given = x if layout == "NCHW" else x.permute(0, 2, 3, 1).contiguous()
    back = net(given) if layout == "NCHW" else net(given).permute(0, 3, 1, 2)
    close(back, wanted)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_the_gradient_of_a_pooling_is_autograds(kind: Any) -> None:
    model = Paddle(operator="pool2d_grad", data_format="NCHW", pooling_type=kind)
    x = values(1, 2, 6, 6).requires_grad_(True)
    pool = functional.max_pool2d if kind == "max" else functional.avg_pool2d
    out = pool(x, 2)
    grad = values(*out.shape)
    out.backward(grad)
    assert x.grad is not None
    close(model._pooled(x.detach()), out.detach())
    close(model.network()(x.detach(), grad), x.grad)
