from __future__ import annotations

import pytest
import torch

from npucompose.api import checked
from npucompose.compose.session import Session


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compiled", "detached"])
def test_twenty_replays_with_a_moving_cache_position_equal_twenty_eager_steps(way: str) -> None:
    live = Session(checked(["mode=reduce-overhead", "passes=stream_plan", "model=gpt_decode"]))
    function = live.compiled if way == "compiled" else live.detached
    assert function is not None, live.why_attached
    live.rewind()
    positions = set()
    for step in range(20):
        inputs = live.inputs(step)
        positions.add(int(inputs["position"]))
        expected = live.call(live.reference, live.inputs(step))
        got = live.call(function, inputs)
        assert torch.equal(expected, got)
        for mine, theirs in zip(live.built.module.buffers(), live.reference.buffers(), strict=True):
            assert torch.equal(mine, theirs)
    assert len(positions) == 20
    assert len(live.compilations) == 1
    assert len(live.compilations[0].lowered.captured) == 1
