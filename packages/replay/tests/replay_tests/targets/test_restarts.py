"""What Dynamo uses to trace a function anew passes through our backends, as it passes through torch's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import exc
from torch._functorch._aot_autograd import graph_compile

import npucompose
from npucompose.passes.simplify import DeadCode

WAYS = [(front, training) for front in ("backend", "compile") for training in (False, True)]


def leaky(x: torch.Tensor, slope: float) -> torch.Tensor:
    """AOTAutograd finds that the number cannot be a symbol, and has Dynamo trace the function with its value."""
    return torch.nn.functional.leaky_relu(x, slope)


@pytest.mark.parametrize(("front", "training"), WAYS)
def test_a_number_that_turns_out_to_be_none_of_a_tensor_restarts_the_trace(
    front: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: Any = graph_compile
    raised: list[BaseException] = []
    genuine: Callable[..., Any] = stages.tensorify_python_scalars

    def noted(*given: Any) -> Any:
        try:
            return genuine(*given)
        except exc.RestartAnalysis as error:
            raised.append(error)
            raise

    monkeypatch.setattr(stages, "tensorify_python_scalars", noted)
    torch._dynamo.reset()
    chosen = "mode=reduce-overhead"
    made = npucompose.compile(leaky, chosen) if front == "compile" else None
    compiled = made or torch.compile(leaky, backend=npucompose.backend(chosen))
    x = torch.randn(random.SystemRandom().randint(9, 99_999), requires_grad=training)  # no cache knows the graph
    for slope in (0.5, 0.25, 0.125):
        torch.testing.assert_close(compiled(x, slope), leaky(x, slope))
    assert raised


@pytest.mark.parametrize(("raised", "traced"), [(exc.TensorifyScalarRestartAnalysis, 2), (exc.SkipFrame, 1)])
def test_a_pass_may_have_the_function_traced_anew_or_left_alone(
    raised: type[Exception], traced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, calls = DeadCode.run, []

    def once(self: DeadCode, request: Any) -> Any:
        calls.append(request)
        if len(calls) == 1:
            raise raised
        return genuine(self, request)

    monkeypatch.setattr(DeadCode, "run", once)
    torch._dynamo.reset()
    compiled = torch.compile(torch.relu_, backend=npucompose.backend("mode=reduce-overhead", "passes=dead_code"))
    assert compiled(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert len(calls) == traced
