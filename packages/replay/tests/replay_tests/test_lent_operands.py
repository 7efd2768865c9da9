"""What another's operator keeps of a result: the caller's memory, or a copy where that is overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import npucompose

KEPT: list[torch.Tensor] = []
LIBRARY = torch.library.Library("npucompose_lent", "FRAGMENT")
LIBRARY.define("keep(Tensor x) -> Tensor")


@torch.library.impl(LIBRARY, "keep", "CPU")
def _keep(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x)
    return x + 1


@torch.library.impl(LIBRARY, "keep", "Meta")
def _keep_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    KEPT.clear()
    torch._dynamo.reset()
    yield
    KEPT.clear()


def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x * 2)  # the product lies where the result will, and dies there
    return y, torch.ops.npucompose_lent.keep(y[1:]) * 3


def compiled(executor: str, **choices: Any) -> Any:
    return npucompose.compile(f, f"target.executor={executor}", *(f"{key}={value}" for key, value in choices.items()))


@pytest.mark.parametrize("executor", ["native", "portable"])
def test_what_is_kept_of_a_result_is_the_callers_memory_and_nobody_overwrites_it(executor: str) -> None:
    call = compiled(executor)
    inputs = [torch.randn(4, 4) for _ in range(6)]
    results = [call(x)[0] for x in inputs]
    for x, y, kept in zip(inputs, results, KEPT, strict=True):
        assert torch.equal(kept, torch.relu(x * 2)[1:])
        assert kept.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    del results, y  # now the operator alone holds it
    call(inputs[0])
    assert all(torch.equal(kept, torch.relu(x * 2)[1:]) for x, kept in zip(inputs, KEPT, strict=False))


@pytest.mark.parametrize("executor", ["native", "portable"])
def test_where_the_next_call_overwrites_results_a_copy_is_kept(executor: str) -> None:
    inputs = [torch.randn(4, 4) for _ in range(4)]
    handle = compiled(executor).detach(inputs[0])
    KEPT.clear()
    for x in inputs:
        handle(x)
    assert [torch.equal(kept, torch.relu(x * 2)[1:]) for x, kept in zip(inputs, KEPT, strict=True)] == [True] * 4


@pytest.mark.parametrize("executor", ["native", "portable"])
def test_what_dies_in_the_memory_of_a_result_is_copied(executor: str) -> None:
    def g(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = torch.ops.npucompose_lent.keep(y)
        return torch.relu(y), z

    call = npucompose.compile(g, f"target.executor={executor}")
    inputs = [torch.randn(4, 4) for _ in range(4)]
    for x in inputs:
        call(x)
    assert [torch.equal(kept, x * 2) for x, kept in zip(inputs, KEPT, strict=True)] == [True] * 4


@pytest.mark.parametrize("executor", ["native", "portable"])
def test_an_input_is_kept_as_it_was_given_until_the_graph_writes_it_and_then_copied(executor: str) -> None:
    def h(x: torch.Tensor) -> torch.Tensor:
        before = torch.ops.npucompose_lent.keep(x)
        x[:].add_(1)  # written where it lies, so that a copy is not what comes of itself
        return before + torch.ops.npucompose_lent.keep(x[:])

    call = npucompose.compile(h, f"target.executor={executor}", "target.when_new=at_once")
    inputs = [torch.randn(4, 4) for _ in range(4)]
    for x in inputs:
        given = x.clone()
        call(x)
        x.zero_()
        before, after = KEPT[-2:]
        assert before.data_ptr() == x.data_ptr()
        assert torch.equal(after, given + 1)
