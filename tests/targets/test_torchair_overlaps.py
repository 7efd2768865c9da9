"""Operands that overlap in part are set apart before TorchAir's in-place pass, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.npu.torchair.refusals import separate_overlaps

X = torch.arange(8.0)


def traced(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*inputs)


def targets(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_a_difference_of_shifted_views_of_a_value_gets_a_copy_and_the_same_result() -> None:
    def diff(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[1:] - y[:-1]

    module = traced(diff, X)
    record = separate_overlaps(module)
    assert record is not None
    assert (record.name, record.matches, record.exact) == ("separate_overlaps", 1, True)
    assert record.nodes_after == record.nodes_before + 1
    assert targets(module)[-2:] == ["aten.clone.default", "aten.sub.Tensor"]
    assert torch.equal(module(X), diff(X))
    assert separate_overlaps(module) is None


def test_inputs_are_never_written_over_and_the_same_elements_may_be() -> None:
    def views_of_an_input(x: torch.Tensor) -> torch.Tensor:
        return x[1:] - x[:-1]

    def twice_the_same(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[1:] * y[1:]

    def other_memory(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[1:] - (x * 3)[:-1]

    for function in (views_of_an_input, twice_the_same, other_memory):
        assert separate_overlaps(traced(function, X)) is None, function.__name__


def test_a_length_that_is_a_symbol_is_not_fixed_by_the_question() -> None:
    def diff(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[1:] - y[:-1]

    module = traced(diff, X, mode="symbolic")
    assert separate_overlaps(module) is not None
    assert torch.equal(module(torch.arange(5.0)), diff(torch.arange(5.0)))
