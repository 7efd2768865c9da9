"""A capture keeps out what would look at every operator, and leaves the process as it was."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.errors import CaptureError
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import traced


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def collecting() -> Iterator[list[bool]]:
    """Defines npucompose_stranger::twice; whether garbage was collected, at each of its runs."""
    library, seen = torch.library.Library("npucompose_stranger", "DEF"), []

    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return x * 2

    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", twice, "CPU")
    yield seen
    library._destroy()


def with_a_stranger(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.ops.npucompose_stranger.twice(x @ x) + 1,)


@pytest.mark.usefixtures("collecting")
def test_a_mode_sees_the_operators_that_are_not_torchs_own_and_no_other() -> None:
    x = torch.randn(3, 3)
    module = traced(with_a_stranger, x)
    with Watching() as mode:
        captured = CapturedGraph.capture(module, [x])
        x + x
    assert mode.seen == ["npucompose_stranger::twice", "aten::add"]
    assert torch.equal(captured.replay(x)[0], (x @ x) * 2 + 1)


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_waits_for_the_end_of_a_capture(collecting: list[bool], collects: bool, fails: bool) -> None:
    x = torch.randn(3, 3)
    module = traced(lambda x: (*with_a_stranger(x), x.nonzero()) if fails else with_a_stranger(x), x)
    collecting.clear()
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(CaptureError) if fails else contextlib.nullcontext():
            CapturedGraph.capture(module, [x])
        assert collecting == [False]
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
