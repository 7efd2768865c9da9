"""What torch's own tracing or Inductor gets wrong in silence; where a call shows it, the call runs as eager runs it."""

from __future__ import annotations

import types
from typing import Any

import torch

from replay_tests.semantics.rows import Compiled, row


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
        apart = g(x[:2].clone(), y[:2])
        return [apart, g(x[:2], x[1:]), x]

    return call


@row
def three_inputs_of_which_two_overlap(compiled: Compiled):
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        b.add_(c)
        return a + b

    g = compiled(f)

    def call() -> list[torch.Tensor]:
        one = g(torch.arange(4.0), torch.ones(4), torch.ones(4))
        base = torch.arange(10.0)
        return [one, g(base[:4], base[4:8], torch.ones(4)), base, g(base[2:6], base[4:8], torch.ones(4)), base]

    return call


@row
def a_part_of_one_of_two_inputs_that_overlap(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.add_(1)
        return y[:1]

    g = compiled(f)

    def call() -> list[torch.Tensor]:
        base = torch.arange(10.0)
        return [g(base[2:6], base[3:9]), base]

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


@row(inputs=lambda k: (torch.randn(4, 6), torch.randn(4, 6)))
def a_scattered_slice_of_what_is_cleared(compiled: Compiled):
    def f(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        y = torch.slice_scatter(x, source[1:3], dim=0, start=1, end=3)
        x.zero_()
        return y

    return compiled(f)


@row(inputs=lambda k: (torch.randn(4, 6), torch.randn(2, 6)))
def a_copied_value_that_is_returned(compiled: Compiled):
    def f(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        new = torch.slice_scatter(x, source, dim=0, start=1, end=3)
        x.copy_(new)
        return new

    g = compiled(f)

    def call(x: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        new = g(x, source)
        new.mul_(0.5)
        return [new, x]

    return call


@row(inputs=lambda k: (torch.arange(-12, 12).reshape(4, 6) + k,))
def a_view_of_another_type_before_a_write(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.view(torch.int32) * 2
        y.sub_(-4)
        x[:, 2:5] = 2
        return y.view(torch.int64)

    return compiled(f)


@row(inputs=lambda k: (torch.randn(8, requires_grad=True),))
def a_detached_third_result(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sin(x)
        return y[0:4], y[4:8], y.detach()

    g = compiled(f)

    def call(x: torch.Tensor) -> list[Any]:
        one, two, three = g(x)
        if one.requires_grad:
            (one + two).sum().backward()
        return [one, two, three, three.requires_grad, x.grad is not None]

    return call


@row(inputs=lambda k: (torch.full((16,), 30000, dtype=torch.int16) + k,))
def small_whole_numbers_that_wrap(compiled: Compiled):
    return compiled(lambda x: (x + x).to(torch.int32))


@row(inputs=lambda k: (torch.randn(4, 17) * 1e30,))
def the_deviation_of_large_numbers(compiled: Compiled):
    return compiled(lambda x: x.std(-1, unbiased=False))
