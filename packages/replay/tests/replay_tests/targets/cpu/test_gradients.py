"""A call that wants gradients runs through AOTAutograd, once with one warning, and its gradients are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose.errors import CaptureError
from npucompose.targets.compilers import NOT_RECORDED

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Small(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        y = torch.nn.functional.gelu(self.linear(x))
        return torch.nn.functional.dropout(y) * self.seen


def gradients(call: Callable[..., Any], model: Small, rows: int) -> list[torch.Tensor]:
    """What a step of training leaves behind, with the buffer and the random numbers."""
    torch.manual_seed(rows)
    x = torch.randn(rows, 4, requires_grad=True)
    model.zero_grad()
    result = call(x)
    result.square().sum().backward()
    found = (result.detach(), x.grad, model.linear.weight.grad, model.linear.bias.grad, model.seen.clone())
    return [tensor for tensor in found if tensor is not None]


FRONTS: dict[str, Callable[[nn.Module], Any]] = {
    "npucompose.compile": npucompose.compile,
    "torch.compile": lambda model: torch.compile(model, backend="npucompose"),
}


@pytest.mark.parametrize("front", FRONTS)
def test_gradients_equal_eagers_over_shapes_and_are_announced_once(front: str) -> None:
    mine, theirs = Small(), Small()
    fast = FRONTS[front](mine)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for rows in (2, 2, 3, 5, 2):
            got, expected = gradients(fast, mine, rows), gradients(theirs, theirs, rows)
            assert len(got) == len(expected) == 5
            assert all(map(torch.equal, got, expected))
    assert [str(one.message) for one in given if "grad" in str(one.message)] == [NOT_RECORDED]


def test_without_gradients_the_same_model_is_recorded() -> None:
    model = Small().eval()
    fast: Any = npucompose.compile(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            fast(torch.randn(2, 4))
    (compilation,) = fast.materialised.backend.compilations
    assert len(compilation.lowered.captured) == 1


def test_passes_work_on_both_graphs() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast: Any = npucompose.compile(model, "passes=[cse,dead_code]")
    x = torch.randn(2, 4)
    with pytest.warns(RuntimeWarning, match="without a recording"):
        fast(x).sum().backward()
    compilations = fast.materialised.backend.compilations
    assert [[record.name for record in one.passes] for one in compilations] == [["cse", "dead_code"]] * 2
    assert [one.lowered for one in compilations] == [None, None]


def test_where_nothing_may_run_beside_a_recording_gradients_are_refused() -> None:
    fast = npucompose.compile(Small(), "compile.partial=refuse")
    with pytest.raises(CaptureError, match="this mode records kernels for inference, and an input or parameter"):
        fast(torch.randn(2, 4))


def test_a_cut_graph_has_gradients_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x * 2,)) * 3

    fast = npucompose.compile(function)
    for sign in (1.0, -1.0):
        mine, theirs = (torch.full((3,), sign, requires_grad=True) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast(mine).sum().backward()
        function(theirs).sum().backward()
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
