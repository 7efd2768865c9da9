"""State that a module keeps: buffers, caches, counters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


class Counter(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


@row(fast=True)
def a_counting_buffer(compiled: Compiled):
    module = Counter()
    return compiled(module), module


@row(fast=True)
def a_buffer_that_is_replaced(compiled: Compiled):
    class Moves(nn.Module):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    module = Moves()
    return compiled(module), module


@row(fast=True)
def a_cache_written_at_a_position(compiled: Compiled):
    class Cache(nn.Module):
        keys: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(8, 4))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(0, at, x)
            return self.keys @ x.t()

    module = Cache()
    f = compiled(module)
    step = iter(range(100))
    return lambda x: f(x[:1], torch.tensor([next(step)])), module


@row
def a_cache_that_grows(compiled: Compiled):
    f = compiled(lambda past, x: torch.cat([past, x]))
    state = {"past": torch.zeros(0, 4)}

    def call(x: torch.Tensor) -> torch.Tensor:
        state["past"] = f(state["past"], x)
        return state["past"].sum(0)

    return call, state


@row
def a_cache_outside_every_module(compiled: Compiled):
    store = {"k": torch.zeros(3, 4)}

    def f(x: torch.Tensor) -> torch.Tensor:
        store["k"].add_(x)
        return store["k"] * 2

    return compiled(f), store


@row
def a_cache_replaced_in_a_dict(compiled: Compiled):
    store = {"k": torch.zeros(3, 4)}

    def f(x: torch.Tensor) -> torch.Tensor:
        store["k"] = store["k"] + x
        return store["k"] * 2

    return compiled(f), store


@row
def a_list_that_the_graph_appends_to(compiled: Compiled):
    seen: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        seen.append(y)
        return y * 2

    return compiled(f), seen


@row(fast=True)
def an_integer_attribute_counts(compiled: Compiled):
    class Steps(nn.Module):
        step = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            return x * self.step

    module = Steps()
    return compiled(module), lambda: module.step


@row
def a_buffer_is_changed_from_outside(compiled: Compiled):
    module = Counter()
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.count.fill_(x[0, 0].item())
        return f(x)

    return call, module


@row
def a_buffer_is_set_anew_from_outside(compiled: Compiled):
    module = Counter()
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.count = x[0, 0].clone()
        return f(x)

    return call, module


@row
def a_buffer_returned_as_it_is(compiled: Compiled):
    module = Counter()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module(x), module.count

    return compiled(f), module


@row
def a_view_of_a_buffer_is_returned(compiled: Compiled):
    table = torch.arange(12.0).reshape(3, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        table.add_(x)
        return table[1]

    return compiled(f), {"table": table}


@row
def two_buffers_that_share_memory(compiled: Compiled):
    class Shares(nn.Module):
        all: torch.Tensor
        tail: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("all", torch.zeros(3, 4))
            self.register_buffer("tail", self.all[1:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.all.add_(x)
            self.tail.mul_(2)
            return self.all.sum(0)

    module = Shares()
    return compiled(module), module


@row
def a_buffer_that_is_no_state(compiled: Compiled):
    class Quiet(nn.Module):
        mask: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tril(torch.ones(3, 3)), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.t()).masked_fill(self.mask == 0, -1e9).softmax(-1)

    module = Quiet()
    return compiled(module), module


@row(fast=True)
def batch_norm_keeps_statistics(compiled: Compiled):
    module = nn.BatchNorm1d(4).requires_grad_(False)
    return compiled(module), module


@row
def batch_norm_between_train_and_eval(compiled: Compiled):
    module = nn.BatchNorm1d(4).requires_grad_(False)
    f = compiled(module)
    turn = iter(range(100))

    def call(x: torch.Tensor) -> torch.Tensor:
        module.train(next(turn) % 2 == 0)
        return f(x)

    return call, module


@row
def a_running_maximum(compiled: Compiled):
    class Observer(nn.Module):
        high: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("high", torch.full((4,), -1e9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.maximum(self.high, x.amax(0), out=self.high)
            return x / self.high

    module = Observer()
    return compiled(module), module


@row
def a_ring_of_buffers(compiled: Compiled):
    ring = [torch.zeros(3, 4) for _ in range(3)]

    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        ring[k].copy_(x)
        return ring[0] + ring[1] * 2 + ring[2] * 3

    g = compiled(f)
    step = iter(range(100))
    return lambda x: g(x, next(step) % 3), ring


@row
def a_state_machine_of_two_graphs(compiled: Compiled):
    state = {"h": torch.zeros(3, 4)}

    def read(x: torch.Tensor) -> torch.Tensor:
        return x + state["h"]

    def write(y: torch.Tensor) -> None:
        state["h"].copy_(y.tanh())

    f, g = compiled(read), compiled(write)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = f(x)
        g(y)
        return y

    return call, state


@row
def a_buffer_of_another_shape(compiled: Compiled):
    module = Counter()
    f = compiled(module)
    step = iter(range(100))

    def call(x: torch.Tensor) -> Any:
        if next(step) == 3:
            module.count = torch.ones(4)
        return f(x)

    return call, module
