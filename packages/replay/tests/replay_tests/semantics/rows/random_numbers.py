"""Random numbers: seeded, drawn in turns with eager, from generators of one's own."""

from __future__ import annotations

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


@row(fast=True)
def dropout_in_training(compiled: Compiled):
    return compiled(lambda x: nn.functional.dropout(x, 0.5, training=True) * 2)


@row(fast=True)
def a_sequence_of_draws(compiled: Compiled):
    f = compiled(lambda x: x + torch.randn(3, 4))
    return lambda x: [f(x), f(x), f(x)]


@row(fast=True)
def draws_in_turns_with_eager(compiled: Compiled):
    f = compiled(lambda x: torch.rand_like(x) + torch.randn(4))
    return lambda x: [f(x), torch.randn(3), f(x), torch.rand(2)]


@row
def seeded_between_calls(compiled: Compiled):
    f = compiled(lambda x: x * torch.bernoulli(torch.full((3, 4), 0.5)))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for seed in (3, 4, 3):
            torch.manual_seed(seed)
            found.append(f(x))
        return found

    return call


@row
def seeded_inside(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return x + torch.randn(4)

    return compiled(f)


@row
def a_generator_of_ones_own(compiled: Compiled):
    generator = torch.Generator().manual_seed(5)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(4, generator=generator)

    return compiled(f)


@row
def a_state_taken_and_put_back(compiled: Compiled):
    f = compiled(lambda x: x + torch.randn(3, 4))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        state = torch.get_rng_state()
        a = f(x)
        torch.set_rng_state(state)
        return [a, f(x)]

    return call


@row
def forked_random_numbers(compiled: Compiled):
    f = compiled(lambda x: x + torch.rand(4))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            a = f(x)
        return [a, f(x)]

    return call


@row
def many_distributions(compiled: Compiled):
    def f(x: torch.Tensor):
        return (
            torch.randint(0, 9, (4,)),
            torch.randperm(5),
            torch.normal(x, 1.0),
            torch.empty(4).uniform_(-1, 1),
            torch.empty(4).exponential_(),
            torch.multinomial(x.softmax(-1), 2),
        )

    return compiled(f)


@row
def noise_in_place(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(torch.randn_like(x))
        x.normal_()
        return x * 2

    return compiled(f)


@row
def dropout_of_a_frozen_module(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4), nn.Dropout(0.3)).requires_grad_(False)
    f = compiled(module)
    return lambda x: [f(x), f(x)]


@row
def attention_with_dropout(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(1, 1, 3, 4)
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.4)

    return compiled(f)


@row
def random_rows_are_kept(compiled: Compiled):
    f = compiled(lambda x: x + torch.randn(4))
    return lambda x: f(x) - f(x)


@row
def python_random_numbers(compiled: Compiled):
    import random

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(1, 2)

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        random.seed(3)
        return [g(x), g(x)]

    return call
