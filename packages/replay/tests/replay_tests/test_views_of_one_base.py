"""Views of one tensor that a function writes and returns: AOTAutograd makes one input of them, and results of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import npucompose

MODES = ("mode=reduce-overhead", "mode=npugraph_ex", "mode=max-autotune")
VIEWS = {
    "the same part twice": (slice(1, None), slice(1, None)),
    "parts that overlap": (slice(2, 6), slice(3, 9)),
    "one within the other": (slice(None, None, 2), slice(4, 5)),
}


def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    y.mul_(2)
    return x, x + 1, y


def first(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    y.add_(1)
    return (x,)


def second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    y.add_(1)
    return x.sum() + y, y


@pytest.mark.parametrize(("mode", "executor"), [*itertools.product(MODES, ("native", "portable"))])
@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("written", [both, first, second])
def test_results_are_the_views_that_they_are_in_eager(
    mode: str, executor: str, views: str, written: Callable[..., tuple[torch.Tensor, ...]]
) -> None:
    torch._dynamo.reset()
    dynamic = views == "the same part twice"
    compiled = torch.compile(written, backend=npucompose.backend(mode, f"target.executor={executor}"), dynamic=dynamic)
    with torch.no_grad():
        for seed in range(4):
            base, mine = (torch.arange(10.0) * (seed + 1) for _ in range(2))
            expected = written(*(base[view] for view in VIEWS[views]))
            found = compiled(*(mine[view] for view in VIEWS[views]))
            assert [y.tolist() for y in found] == [y.tolist() for y in expected]
            assert torch.equal(mine, base)
            assert [y.storage_offset() for y in found] == [y.storage_offset() for y in expected]
