"""Random straight-line programs over a few matrices: views, kernels of both kinds, in-place updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from hypothesis import strategies as st

N = 4

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "neg": torch.neg,
    "clone": torch.clone,
    "transpose": lambda x: x.t(),
    "flip": lambda x: x.flip(0),
    "row": lambda x: x[1:2].expand(N, N),
    "diagonal": lambda x: torch.diag_embed(x.diagonal()),
    "reshape": lambda x: x.reshape(N // 2, N * 2).reshape(N, N),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (N,)),
    "mean": lambda x: x.mean(0, keepdim=True).expand(N, N),
    "half": lambda x: x * 0.5 + 1,
    "split": lambda x: torch.cat(x.split(2)[::-1]),
    "double": lambda x: x.double().float(),
    "constant": lambda x: x + torch.eye(N),
    "empty": lambda x: torch.empty(N, N).copy_(x),
}
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "mm": torch.mm,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x[:2], y[2:]]),
    "scatter": lambda x, y: x.index_copy(0, torch.tensor([2]), y[:1]),
}
_IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "fill_row": lambda x, y: x[1:2].copy_(y[:1]),
    "mul_": lambda x, y: x.mul_(0.5),
}


@frozen
class Program:
    """`program(a, b, c)` is a tuple of tensors; the same for equal inputs, whatever else ran."""

    steps: tuple[tuple[str, int, int], ...]
    outputs: tuple[int, ...]

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for name, a, b in self.steps:
            x, y = values[a % len(values)], values[b % len(values)]
            if name in _UNARY:
                values.append(_UNARY[name](x))
            elif name in _BINARY:
                values.append(_BINARY[name](x, y))
            elif _writable(x):
                _IN_PLACE[name](x, y.clone())
        return tuple(values[i % len(values)] for i in self.outputs)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.rand(N, N, generator=generator) - 0.5 for _ in range(3)]


def _writable(x: torch.Tensor) -> bool:
    return all(step != 0 for step in x.stride())


@st.composite
def programs(draw: Any, in_place: bool = True) -> Program:
    names = [*_UNARY, *_BINARY, *(_IN_PLACE if in_place else ())]
    step = st.tuples(st.sampled_from(names), st.integers(0, 40), st.integers(0, 40))
    steps = draw(st.lists(step, min_size=1, max_size=14))
    outputs = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    return Program(tuple(steps), tuple(outputs))
