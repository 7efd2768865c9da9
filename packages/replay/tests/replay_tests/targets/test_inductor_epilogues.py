"""The GELU of a template of Inductor's: a sigmoid computes it, as near to the exact one as eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import mkldnn_lowerings
from torch._inductor.utils import run_and_get_code

import npucompose
from npucompose_replay.inductor.kernels import made_our_way

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
TORCHS = mkldnn_lowerings.create_epilogue_with_attr
PRODUCT = "linear_pointwise_gelu{}_48x256_64x256_64_float32"


class Gelu(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.product, self.activation = nn.Linear(256, 64), nn.GELU(approximate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.product(x))


@pytest.mark.parametrize(("approximate", "function"), [("tanh", "tanh()"), ("none", "erf()")])
def test_only_one_with_a_tanh_is_computed_as_a_sigmoid(fresh_dynamo: None, approximate: str, function: str) -> None:
    torch.manual_seed(0)
    model, x = Gelu(approximate).eval(), torch.randn(48, 256)
    key = PRODUCT.format("_tanh" if approximate == "tanh" else "")
    asked = ("inductor.replay=wrapper", "target.linear=onednn", f"target.kernels={{{key}: template}}")
    with torch.no_grad():
        fast: Any = npucompose.compile(copy.deepcopy(model), "mode=max-autotune", *asked)
        got, codes = run_and_get_code(fast, x)
        wanted, eager = copy.deepcopy(model).double()(x.double()), model(x)
    assert any("micro_gemm" in code for code in codes)
    assert any(function in code for code in codes) is (approximate != "tanh")
    off = [float((result - wanted).norm() / wanted.norm()) for result in (got, eager)]
    assert off[0] < 1.1 * off[1]


def test_afterwards_epilogues_are_torchs() -> None:
    with made_our_way():
        assert mkldnn_lowerings.create_epilogue_with_attr is not TORCHS
    assert mkldnn_lowerings.create_epilogue_with_attr is TORCHS
