"""torch's own control flow: cond, while_loop, map, scan, flex_attention, checkpoint."""

from __future__ import annotations

import torch
from torch._higher_order_ops.while_loop import while_loop

from replay_tests.semantics.rows import Compiled, row


@row(fast=True)
def cond(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1

    return compiled(f)


@row
def cond_between_work(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = (x @ y.t()).relu()
        b = torch.cond(a.mean() > 0.5, lambda a: a * 2, lambda a: a - 1, (a,))
        return b.sum(0) - a.sum(1)

    return compiled(f)


@row
def two_conds_in_a_row(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return torch.cond(x[1, 1] > 0, lambda x: x * 3, lambda x: x * 5, (x,))

    return compiled(f)


@row
def a_nested_cond(compiled: Compiled):
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, inner, lambda x: x * 2, (x,))

    return compiled(f)


@row
def cond_with_weights(compiled: Compiled):
    linear = torch.nn.Linear(4, 4).requires_grad_(False)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: linear(x), lambda x: x @ linear.weight, (x,))

    return compiled(f)


@row
def results_of_cond_are_kept(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    g = compiled(f)
    return lambda x: [g(x), g(-x), g(x * 2)]


@row(fast=True)
def a_while_loop(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        count, y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + 1), (torch.tensor(0), x))
        return y + count

    return compiled(f)


@row
def a_while_loop_over_data(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        (y,) = while_loop(lambda y: y.abs().max() > 0.1, lambda y: (y / 3,), (x,))
        return y * 2

    return compiled(f)


@row
def vmap(compiled: Compiled):
    return compiled(lambda x: torch.vmap(lambda line: line.softmax(0) * line.sum())(x))


@row
def jacobians(compiled: Compiled):
    return compiled(lambda x: torch.func.jacrev(lambda line: (line * line).sum())(x[0]))


@row
def grad_of_a_function_inside(compiled: Compiled):
    return compiled(lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x))


@row
def checkpointing(compiled: Compiled):
    linear = torch.nn.Linear(4, 4).requires_grad_(False)
    return compiled(lambda x: torch.utils.checkpoint.checkpoint(lambda y: linear(y).relu(), x, use_reentrant=False))


@row(inputs=lambda k: tuple(torch.randn(1, 2, 16, 8) for _ in range(3)))
def flex_attention(compiled: Compiled):
    from torch.nn.attention.flex_attention import flex_attention

    def causal(score, b, h, q, k):
        return torch.where(q >= k, score, -float("inf"))

    return compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=causal))


@row
def where_instead_of_a_branch(compiled: Compiled):
    return compiled(lambda x: torch.where(x.sum() > 0, x * 2, x - 1))


@row
def a_loop_over_layers(compiled: Compiled):
    weights = [torch.randn(4, 4) for _ in range(4)]

    def f(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = (x @ w).tanh()
        return x

    return compiled(f)
