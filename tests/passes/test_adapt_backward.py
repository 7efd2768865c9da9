"""Rules act on backward graphs, where a mode compiles them: gradients keep the rules' contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from tests.npu.needs import offline, run

PADDLE = """
import torch
from npucompose.ops import define_installed

define_installed(["paddle.pool2d.default"])
paddle = torch.ops.paddle
WINDOW = ([2, 2], [2, 2], [0, 0], False, True, "NHWC", "max")


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.relu(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, dout):
        return paddle.relu_grad(ctx.saved_tensors[0], dout)


class Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = paddle.pool2d(x, *WINDOW)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, dout):
        return paddle.pool2d_grad(*ctx.saved_tensors, dout, *WINDOW)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x):
        return Pool.apply(Relu.apply(x * self.scale))


def make():
    return Model(), {"x": torch.linspace(-3, 3, 96).view(2, 4, 4, 3)}
"""
BACKWARD = {"relu_grad", "pool2d_grad_nhwc", "pool2d_grad_max"}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(self.linear(x).log_softmax(1), label)


def made(text: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names["make"]()


def gradients(model: nn.Module, call: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    call(*inputs).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def trained(model: nn.Module, *inputs: torch.Tensor, adapt: str) -> tuple[list[torch.Tensor], list[Any]]:
    """The compiled model's gradients, and what was compiled; the graphs are run as the rules left them."""
    compiled = npucompose.compile(model, "mode=max-autotune", f"adapt={adapt}", "check=per_pass")
    compiled.materialised.backend.reads_only = True
    found = gradients(model, compiled, *inputs)
    return found, compiled.materialised.backend.compilations


def rules(compilation: Any) -> set[str]:
    return {rule.rule for record in compilation.passes for rule in record.rules}


def test_relu_grad_and_pool2d_grad_are_adapted_where_they_stand_in_the_backward_graph() -> None:
    model, inputs = made(PADDLE)
    got, (forward, backward) = trained(model, *inputs.values(), adapt="paddle")
    assert rules(forward) == {"pool2d_nhwc", "pool2d"}
    assert rules(backward) == BACKWARD
    assert "paddle." not in backward.text_after
    for ours, eager in zip(got, gradients(model, model, *inputs.values()), strict=True):
        assert torch.equal(ours, eager)


def test_the_gradient_of_a_double_loss_is_computed_in_float_within_its_contract() -> None:
    torch.manual_seed(0)
    model, x, label = Classifier(), torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2])
    got, (forward, backward) = trained(model, x, label, adapt="ascend")
    assert rules(forward) == {"nll_loss_double"}
    assert rules(backward) == {"nll_loss_backward_double"}
    for ours, eager in zip(got, gradients(model, model, x, label), strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@offline
@pytest.mark.slow
def test_the_genuine_converter_takes_the_adapted_backward_graph_and_not_the_bare_one(tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(PADDLE)
    chosen = ("mode=max-autotune", "model=python", "model.factory=pooled:make", "trust=true", "compile.training=true")
    status, report, error = run(tmp_path, *chosen, "adapt=paddle")
    assert (status, error) == (0, "")
    told = {one["graph"]: {rule["rule"] for rule in one["rules"]} for one in report["passes"]}
    assert told["graph_1"] == BACKWARD
    assert report["npu"]["ge_graphs"][1]["types"]["ReluGrad"] == 1
    assert report["numerics"]["passed"]
    status, _, error = run(tmp_path, *chosen)
    assert status == 3
    assert "TorchAir has no GE converter for torch.ops.paddle.pool2d.default, and generates one only from" in error
    assert "at pooled.py:" in error
    assert "It says" not in error, "that a library of CANN's is missing here is no fault of the model"
