"""Generated code that calls oneDNN's convolutions with packed weights: what Inductor writes for a frozen network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from npucompose_replay.capture.generated import Observer
from replay_tests.test_generated_code import EXECUTORS, Code, by_itself, captured, copied
from tests.graph_helpers import same

mkldnn = torch.ops.mkldnn
FORM = ([1, 1], [1, 1], [1, 1], 1)
"""Padding, stride, dilation, groups."""
SHAPE = 2, 16, 6, 6

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch is built without oneDNN")


def image() -> torch.Tensor:
    return torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)


torch.manual_seed(0)
WEIGHT, BIAS = torch.randn(16, 16, 3, 3) / 12, torch.randn(16)
PACKED = (
    mkldnn._reorder_convolution_weight(WEIGHT, *FORM, list(SHAPE)) if torch.backends.mkldnn.is_available() else WEIGHT
)


def _block(inputs: list[Any], observer: Observer) -> Sequence[Any]:
    """A convolution with its activation, one that adds to what is there in place, and one that is returned."""
    (x,) = inputs
    first = mkldnn._convolution_pointwise.default(x, PACKED, BIAS, *FORM, "relu", [None], "")
    second = mkldnn._convolution_pointwise.default(first, PACKED, BIAS, *FORM, "none", [None], "")
    other = copied(second, observer)
    added = mkldnn._convolution_pointwise_.binary(other, first, PACKED, BIAS, *FORM, "add", 1.0, "relu", [None], None)
    return [copied(added, observer), mkldnn._convolution_pointwise.default(added, PACKED, None, *FORM, "none", [], "")]


BLOCK = Code(_block, {"packed": PACKED, "bias": BIAS})


@pytest.mark.parametrize("executor", EXECUTORS)
def test_packed_convolutions_are_replayed_bit_for_bit(executor: str):
    recording, _ = captured(BLOCK, image(), executor=executor)
    kept = []
    for _ in range(3):
        x = image()
        kept.append((recording.replay(x), by_itself(BLOCK, x)))
    assert all(same(got, expected) for got, expected in kept), "results are their holders' own"
    assert kept[0][0][1].is_contiguous(memory_format=torch.channels_last)


def test_they_compute_what_torchs_own_convolutions_do():
    """The code itself, against torch: else a replay could repeat what is wrong."""
    x = image()
    first = torch.conv2d(x, WEIGHT, BIAS, padding=1).relu()
    second = torch.conv2d(first, WEIGHT, BIAS, padding=1)
    added = (second + torch.conv2d(first, WEIGHT, BIAS, padding=1)).relu()
    recording, _ = captured(BLOCK, x)
    for got, expected in zip(recording.replay(x), (added, torch.conv2d(added, WEIGHT, padding=1)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_packed_weight_is_a_constant_of_the_recording_and_not_looked_into():
    recording, _ = captured(BLOCK, image())
    packed = [arg for step in recording.plan.steps for arg in step.args if isinstance(arg, torch.Tensor)]
    assert len(packed) == 4
    assert all(arg is PACKED for arg in packed)
