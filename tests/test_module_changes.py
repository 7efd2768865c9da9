"""Recorded modes follow a module: whatever is done to it between calls, results and state are those of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import npucompose


class Net(nn.Module):
    scale: torch.Tensor
    fc: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop, self.out = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(4))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.fc(x))))) * self.scale * self.factor


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def step(net: Net) -> None:
    net.requires_grad_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    torch.manual_seed(7)
    net(torch.ones(3, 4, dtype=net.fc.weight.dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    net.requires_grad_(False)


def load(net: Net, *, assign: bool = False) -> None:
    torch.manual_seed(9)
    net.load_state_dict(Net().state_dict(), assign=assign)
    net.requires_grad_(False)


def replace(net: Net) -> None:
    net.fc.weight = nn.Parameter(drawn(6, 4), requires_grad=False)


def set_data(net: Net) -> None:
    net.fc.weight.data = drawn(4, 6).t()


def replace_buffer(net: Net) -> None:
    net.scale = torch.full((4,), 3.0)


def change_factor(net: Net) -> None:
    net.factor = 5.0


def widen(net: Net) -> None:
    torch.manual_seed(3)
    net.fc, net.norm, net.out = nn.Linear(4, 9), nn.BatchNorm1d(9).train(net.training), nn.Linear(9, 4)
    net.requires_grad_(False)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "nothing": lambda net: None,
    "a step of an optimiser": step,
    "load_state_dict": load,
    "load_state_dict, assigned": lambda net: load(net, assign=True),
    "another dtype": lambda net: net.bfloat16(),
    "and back": lambda net: net.float(),
    "replaced": replace,
    ".data set": set_data,
    ".data written": lambda net: net.fc.weight.data.mul_(2),
    "train": lambda net: net.train(),
    "a part in eval": lambda net: net.drop.eval(),
    "eval": lambda net: net.eval(),
    "an attribute": change_factor,
    "a buffer replaced": replace_buffer,
    "a buffer written": lambda net: net.scale.mul_(2),
    "wider": widen,
}
MODES = [
    "mode=reduce-overhead",
    pytest.param("mode=npugraph_ex", marks=pytest.mark.slow),
    pytest.param("mode=reduce-overhead target.executor=portable", marks=pytest.mark.slow),
    pytest.param("mode=reduce-overhead target.pool=graph", marks=pytest.mark.slow),
    pytest.param("mode=npugraph_ex compiler.npugraph_ex.clone_output=true", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("choices", MODES)
def test_what_is_done_to_the_module_is_followed(choices: str):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net().requires_grad_(False).eval()
    reference, fast = copy.deepcopy(net), npucompose.compile(net, choices.split())
    for what, change in CHANGES.items():
        for module in (net, reference):
            change(module)
        for seed in range(3):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).to(net.fc.weight.dtype)
            with torch.no_grad():
                torch.manual_seed(seed)
                expected = reference(x)
                torch.manual_seed(seed)
                assert torch.equal(fast(x), expected), (what, seed)
        for name, value in reference.state_dict().items():
            assert torch.equal(net.state_dict()[name], value), (what, name)
