"""What no recording can take or hold: nested tensors, other devices, freed memory, results that overlap themselves."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.inductor_prims
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def jagged(k: int) -> tuple[torch.Tensor, ...]:
    rows = [torch.randn(2 + k % 3, 3), torch.randn(4, 3)]
    return tuple(rows)


@row(inputs=jagged, fast=True)
def a_nested_tensor(compiled: Compiled):
    f = compiled(lambda n: n.sin() * 2)

    def call(*rows: torch.Tensor) -> list[torch.Tensor]:
        result = f(torch.nested.nested_tensor(list(rows), layout=torch.jagged))
        return [result.values(), result.offsets()]

    return call


@row(inputs=jagged)
def a_nested_tensor_and_a_plain_one(compiled: Compiled):
    f = compiled(lambda n, x: (n * 2, x + 1))

    def call(*rows: torch.Tensor) -> list[torch.Tensor]:
        nested, plain = f(torch.nested.nested_tensor(list(rows), layout=torch.jagged), rows[1])
        return [nested.values(), plain]

    return call


@row(fast=True)
def a_tensor_elsewhere_that_is_not_read(compiled: Compiled):
    f = compiled(lambda x, m: (x + 1, (m * 2).shape[0]))
    return lambda x: list(f(x, torch.empty(5, device="meta")))


@row
def a_tensor_elsewhere_that_is_read(compiled: Compiled):
    f = compiled(lambda x, m: (x.sin() + 1, m * 2))

    def call(x: torch.Tensor) -> list[Any]:
        here, there = f(x, torch.empty(5, device="meta"))
        return [here, str(there.device), list(there.shape)]

    return call


def probabilities(k: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(6),)


@row(inputs=probabilities, fast=True)
def random_windows(compiled: Compiled):
    return compiled(lambda p: torch.bernoulli(p).unfold(0, 3, 1))


@row(inputs=probabilities)
def windows_of_normal_numbers(compiled: Compiled):
    return compiled(lambda p: torch.randn_like(p).unfold(0, 3, 1))


@row(inputs=probabilities)
def windows_behind_a_dropout(compiled: Compiled):
    return compiled(lambda p: nn.functional.dropout(p, 0.5).unfold(0, 2, 1))


@row(inputs=probabilities)
def windows_of_drawn_numbers(compiled: Compiled):
    return compiled(lambda p: torch.multinomial(p, 4, replacement=True).unfold(0, 2, 1))


@torch.library.custom_op("semantics::plus_one", mutates_args=())
def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@plus_one.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@row(inputs=probabilities)
def windows_over_an_operators_result(compiled: Compiled):
    return compiled(lambda p: plus_one(p).unfold(0, 3, 1))


@row(inputs=probabilities)
def a_strided_view_that_overlaps_itself(compiled: Compiled):
    return compiled(lambda p: plus_one(p).as_strided((2, 3), (1, 1), 1))


@row(inputs=probabilities)
def windows_that_are_held(compiled: Compiled):
    f, kept = compiled(lambda p: plus_one(p).unfold(0, 3, 1)), list[Any]()

    def call(p: torch.Tensor) -> torch.Tensor:
        kept.append(f(p))
        return kept[-1]

    return call, kept


class Cache(nn.Module):
    """Two buffers in one memory, one of them written, beside a weight."""

    def __init__(self) -> None:
        super().__init__()
        kv = torch.zeros(2, 2)
        self.register_buffer("kv", kv)
        self.register_buffer("k", kv[0])
        self.w = nn.Parameter(torch.randn(3, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k.add_(1)  # type: ignore[operator]
        return nn.functional.linear(x, self.w) + self.kv.sum()  # type: ignore[operator]


@row(fast=True)
def buffers_that_share_memory(compiled: Compiled):
    module = Cache()
    f = compiled(module)
    return (lambda x: f(x)), module


@row(inputs=lambda k: (torch.randn(8, 8),))
def a_mask_that_is_made_inside(compiled: Compiled):
    """Inductor of torch 2.13 has no kernel for it: pytorch #196570."""

    def f(x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((8, 8), -10000.0)
        mask[torch.arange(8).unsqueeze(0), torch.arange(8).unsqueeze(1)] = 0
        return torch.softmax(x + mask, dim=-1)

    return compiled(f)


resize: Any = torch.ops.inductor.resize_storage_bytes_


def gathered(k: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8),)


@row(inputs=gathered, fast=True)
def a_parameter_whose_memory_comes_within_the_graph(compiled: Compiled):
    """What FSDP2 does before a layer."""

    def f(parameter: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        resize(parameter, 32)
        with torch.no_grad():
            parameter.copy_(gathered)
        return parameter * 2 + gathered.neg()

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        parameter = torch.zeros(8)
        parameter.untyped_storage().resize_(0)
        return [g(parameter, x), parameter]

    return call


@row(inputs=gathered)
def a_parameter_whose_memory_goes_within_the_graph(compiled: Compiled):
    """What FSDP2 does behind a layer."""

    def f(parameter: torch.Tensor) -> torch.Tensor:
        result = parameter * 2 + 1
        resize(parameter, 0)
        return result

    g = compiled(f)

    def call(x: torch.Tensor) -> list[Any]:
        parameter = x.clone()
        return [g(parameter), parameter.untyped_storage().nbytes()]

    return call
