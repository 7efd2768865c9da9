"""What torch's own tracing or Inductor gets wrong in silence; where a call shows it, the call runs as eager runs it."""

from __future__ import annotations

import types
from typing import Any

import torch

from tests.semantics.rows import Compiled, row


@row(fast=True)
def inputs_that_begin_to_overlap(compiled: Compiled):
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    g = compiled(f)

    def call() -> list[torch.Tensor]:
        apart = g(torch.arange(4.0), torch.ones(4))
        base = torch.arange(6.0)
        return [apart, g(base[:4], base[2:6]), base, g(torch.arange(4.0), torch.ones(4))]

    return call


@row
def inputs_that_begin_to_be_one(compiled: Compiled):
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    g = compiled(f)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [g(x, y), g(x[:2], x[1:]), x]

    return call


@row
def three_inputs_of_which_two_overlap(compiled: Compiled):
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        b.add_(c)
        return a + b

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        one = g(x.clone(), x.clone(), x.clone())
        base = torch.arange(10.0)
        return [one, g(base[:4], base[4:8], base[6:]), base, g(base[2:6], base[4:8], base[:4]), base]

    return call


@row
def a_draw_that_is_not_read(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.rand(3, 4)
        torch.randint(0, 9, (5,))
        return y + torch.rand(3, 4)

    return compiled(f)


@row
def code_that_is_replaced(compiled: Compiled):
    class Worker:
        def m(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    worker = Worker()
    f = compiled(lambda x: worker.m(x) * 2)

    def other(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x - 1

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        one = f(x)
        before = Worker.m.__code__
        Worker.m.__code__ = other.__code__.replace(co_name="m")
        try:
            return [one, f(x)]
        finally:
            Worker.m.__code__ = before

    assert isinstance(Worker.m, types.FunctionType)
    return call


@row
def a_scattered_slice_whose_source_is_cleared(compiled: Compiled):
    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = torch.slice_scatter(x, t, 0, 0, 3)
        t.zero_()
        return y + 0.5

    return compiled(f)


@row
def a_source_that_is_returned(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        new = y * 2
        x.copy_(new)
        return new

    g = compiled(f)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        new = g(x, y)
        x.add_(1)
        return [new, x]

    return call


@row
def a_view_of_another_type_that_is_written(compiled: Compiled):
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        bits = y.view(torch.int32)
        before = y * 2
        bits.zero_()
        return [before, y]

    return compiled(f)


@row(inputs=lambda k: (torch.randn(3, 4, requires_grad=True),))
def a_detached_third_result(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, y * 2, y.detach()

    g = compiled(f)

    def call(x: torch.Tensor) -> list[Any]:
        one, two, three = g(x)
        (one + two).sum().backward()
        return [one, two, three, three.requires_grad, x.grad]

    return call


@row(inputs=lambda k: (torch.full((16,), 30000, dtype=torch.int16) + k,))
def small_whole_numbers_that_wrap(compiled: Compiled):
    return compiled(lambda x: (x + x) // 3)


@row(inputs=lambda k: (torch.randn(4, 17) * 1e30,))
def the_deviation_of_large_numbers(compiled: Compiled):
    return compiled(lambda x: x.std(-1, unbiased=False))
