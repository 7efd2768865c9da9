"""Calls with gradients on: of inputs, of weights, through kept results, in training loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def wanting(k: int) -> tuple[torch.Tensor]:
    return (torch.randn(3, 4, requires_grad=True),)


@row(fast=True, inputs=wanting)
def the_gradient_of_an_input(compiled: Compiled):
    f = compiled(lambda x: (x * x).sin())

    def call(x: torch.Tensor) -> torch.Tensor:
        y = f(x)
        y.sum().backward()
        return y.detach()

    return call


@row(fast=True)
def a_training_step(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    f = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def call(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (f(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call, module


@row
def the_loss_is_compiled_too(compiled: Compiled):
    module = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    f = compiled(lambda x: (module(x) - 1).square().mean())

    def call(x: torch.Tensor) -> torch.Tensor:
        loss = f(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return call, module


@row
def two_forwards_then_two_backwards(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        module.zero_grad()
        a, b = f(x), f(y)
        a.sum().backward()
        (b * b).sum().backward()
        return [module.weight.grad.clone(), module.bias.grad.clone(), a.detach(), b.detach()]

    return call


@row
def gradients_accumulate(compiled: Compiled):
    module = nn.Linear(4, 2)
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            f(x + k).sum().backward()
        return module.weight.grad.clone()

    return call, module


@row(inputs=wanting)
def autograd_grad(compiled: Compiled):
    f = compiled(lambda x: (x**3).sum())
    return lambda x: torch.autograd.grad(f(x), x)


@row(inputs=wanting)
def a_result_that_is_kept_for_later(compiled: Compiled):
    f = compiled(lambda x: x.exp())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        kept = [f(x), f(x * 2)]
        f(x * 3)
        sum(y.sum() for y in kept).backward()
        return [y.detach() for y in kept]

    return call


@row
def no_gradient_then_gradient(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def call(x: torch.Tensor) -> list[Any]:
        module.zero_grad()
        with torch.no_grad():
            calm = f(x)
        y = f(x)
        y.sum().backward()
        with torch.no_grad():
            return [calm, y.detach(), module.weight.grad.clone(), f(x)]

    return call


@row(fast=True)
def only_a_result_without_gradients_is_wanted(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    return lambda x: [f(x), f(x + 1)]


@row(inputs=wanting)
def detached_inside(compiled: Compiled):
    f = compiled(lambda x: x.detach() * x)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = f(x)
        y.sum().backward()
        return y.detach()

    return call


@row
def dropout_in_a_training_step(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        loss = f(x).sum()
        loss.backward()
        return loss.detach()

    return call, module


@row
def batch_norm_in_a_training_step(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        loss = f(x).square().mean()
        loss.backward()
        return loss.detach()

    return call, module


@row
def gradients_behind_a_graph_break(compiled: Compiled):
    module = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = module(x).relu()
        torch._dynamo.graph_break()
        return (y * y).sum()

    g = compiled(f)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        loss = g(x)
        loss.backward()
        return loss.detach()

    return call, module


@row
def clipped_gradients(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def call(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        f(x).pow(2).sum().backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return norm

    return call, module


@row(inputs=wanting)
def a_hook_on_a_gradient(compiled: Compiled):
    f = compiled(lambda x: x * 3)

    def call(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 2)
        y = f(x)
        y.sum().backward()
        return y.detach()

    return call


@row
def some_weights_are_frozen(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    module[0].requires_grad_(False)
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        f(x).sum().backward()
        return module[1].weight.grad.clone()

    return call, module


@row
def trained_under_autocast(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = f(x).float().sum()
        loss.backward()
        return loss.detach()

    return call, module
