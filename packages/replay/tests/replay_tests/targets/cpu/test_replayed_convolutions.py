"""mode=max-autotune on convolutions: packed weights, channels last throughout, recorded and replayed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose.models.convolutional import ResNet18, UNet
from npucompose_replay.operands import flat
from npucompose_replay.plan import PlanSlot
from replay_tests.targets.cpu.test_replayed_inductor import FUSED, WRAPPER, recordings
from tests.graph_helpers import same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


FORMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "in a row": (lambda: nn.Conv1d(4, 16, 3), lambda: image(2, 4, 20)),
    "of volumes": (lambda: nn.Conv3d(4, 16, 3), lambda: image(1, 4, 6, 6, 6)),
    "of each channel": (lambda: nn.Conv2d(16, 16, 3, groups=16, padding=1), lambda: image(2, 16, 8, 8)),
    "of groups, with holes": (lambda: nn.Conv2d(16, 32, 3, groups=4, dilation=2), lambda: image(2, 16, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), lambda: image(2, 8, 5, 5)),
    "transposed in groups": (lambda: nn.ConvTranspose2d(8, 16, 3, groups=2), lambda: image(2, 8, 5, 5)),
    "padded by reflection": (lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), lambda: image(1, 4, 6, 6)),
    "without a batch": (lambda: nn.Conv2d(4, 8, 3), lambda: image(4, 6, 6)),
    "in bfloat16": (lambda: nn.Conv2d(4, 16, 3).bfloat16(), lambda: image(1, 4, 8, 8, dtype=torch.bfloat16)),
}


class Between(nn.Module):
    """The convolution between pointwise operators, which may go into it, and a sum that may be done in place."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.gelu(self.convolution(x * 2))
        return torch.relu(y + self.convolution(x)), y.mean(-1)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_convolution_is_recorded_and_gives_the_wrappers_bits(form: str):
    make, given = FORMS[form]
    module = Between(make()).eval().requires_grad_(False)
    native = npucompose.compile(module, *FUSED)
    wrapper = npucompose.compile(copy.deepcopy(module), *WRAPPER)
    with torch.no_grad():
        for _ in range(3):
            x = given()
            assert same(native(x), wrapper(x))
    assert native.statistics.hits == 2
    assert len(recordings(native)) == 1


NETWORKS: dict[str, Callable[[], Any]] = {
    "resnet18": lambda: ResNet18(size=32, channels=16, classes=10).build(0),
    "unet": lambda: UNet(size=16, channels=16, depth=2).build(0),
}


def convolutions(recording: Any) -> list[Any]:
    return [step for step in recording.plan.steps if "_convolution" in str(step.op)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_packed_weights_and_channels_last_throughout(name: str):
    built = NETWORKS[name]()
    native = npucompose.compile(copy.deepcopy(built.module), *FUSED)
    wrapper = npucompose.compile(copy.deepcopy(built.module), *WRAPPER)
    with torch.no_grad():
        for step in range(3):
            (x,) = built.inputs(step).values()
            got = native(x)
            assert same([got], [wrapper(x)])
            torch.testing.assert_close(got, built.module(x), rtol=1e-3, atol=1e-3)
    (recording,) = recordings(native)
    found = convolutions(recording)
    assert len(found) == sum(isinstance(one, (nn.Conv2d, nn.ConvTranspose2d)) for one in built.module.modules())
    for step in found:
        assert any(isinstance(leaf, torch.Tensor) and leaf.is_mkldnn for leaf in flat(step.args)), step.op
        for slot in (leaf for leaf in flat(step.args) if isinstance(leaf, PlanSlot)):
            shape, stride = slot.layout.shape, slot.layout.stride
            if len(shape) == 4 and shape[1] > 1:
                assert stride[1] == 1, f"{step.op}: {shape} lies as {stride}"
