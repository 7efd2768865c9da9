"""Writes: on inputs, on views of inputs, on results, on buffers of the caller's."""

from __future__ import annotations

from typing import Any

import torch

from replay_tests.semantics.rows import Compiled, row


@row(fast=True)
def an_input_is_written(compiled: Compiled):
    return compiled(lambda x: x.add_(1))


@row(fast=True)
def an_input_is_written_and_not_returned(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        return y.sum()

    return compiled(f)


@row(fast=True)
def a_view_of_an_input_is_written(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1].fill_(3.0)
        x.t()[0].add_(1)
        return x * 2

    return compiled(f)


@row
def an_input_is_read_before_and_after_it_is_written(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x * 1
        x.relu_()
        return before, x - before

    return compiled(f)


@row
def the_same_tensor_for_two_arguments(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    g = compiled(f)
    return lambda x: g(x, x)


@row(fast=True)
def one_tensor_then_two(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    g = compiled(f)
    return lambda x, y: [g(x, x), g(x, y), g(y, y)]


@row
def two_overlapping_views_one_is_written(compiled: Compiled):
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    g = compiled(f)
    return lambda x: g(x[:2], x[1:])


@row(fast=True)
def a_result_is_written_between_calls(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        a.mul_(10)
        b = f(x)
        b.mul_(100)
        return [a, b, f(x)]

    return call


@row
def a_result_is_written_by_the_next_call(compiled: Compiled):
    f, g = compiled(lambda x: x * 2), compiled(lambda y: y.sub_(1))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        b = g(a)
        return [a, b, f(x)]

    return call


@row
def a_result_is_written_by_its_own_maker(compiled: Compiled):
    def f(x: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        previous.add_(x)
        return previous * 2

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = g(x, torch.zeros(3, 4))
        b = g(x, a)
        return [a, b, g(x, b)]

    return call


@row(fast=True)
def a_returned_input_is_the_callers_own(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x + y

    return compiled(f)


@row
def a_returned_view_of_an_input(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[1:], x.t()

    g = compiled(f)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = g(x)
        a.zero_()
        return a, b

    return call


@row
def a_view_of_a_written_input_is_returned(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[0]

    return compiled(f)


@row
def a_written_input_that_is_not_contiguous(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x.cumsum_(0)
        return x.sum(1)

    g = compiled(f)
    return lambda x: g(x.t())


@row
def a_slice_of_a_larger_tensor_is_written(compiled: Compiled):
    f = compiled(lambda x: x.neg_())

    def call(x: torch.Tensor) -> torch.Tensor:
        f(x[:, 1:3])
        f(x[1:2])
        return x

    return call


@row
def copy_into_an_argument(compiled: Compiled):
    def f(out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(x * 2)

    g = compiled(f)

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 4)
        assert g(out, x) is None
        return out

    return call


@row
def the_out_keyword(compiled: Compiled):
    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1, out=out)

    g = compiled(f)

    def call(x: torch.Tensor) -> Any:
        out = torch.empty(3, 4)
        return g(x, out) is out, out

    return call


@row
def writes_through_an_expanded_source(compiled: Compiled):
    def f(x: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
        x += line.expand(3, 4)
        return x

    g = compiled(f)
    return lambda x: g(x, x[0].clone())


@row
def slices_written_in_a_loop(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 4)
        for i in range(3):
            out[i] = x[i] * i
            out[:, i] += 1
        return out

    return compiled(f)


@row
def index_put_with_accumulation(compiled: Compiled):
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.index_put_((at,), torch.ones(4, 4), accumulate=True)

    g = compiled(f)
    return lambda x: g(x, torch.tensor([0, 2, 0, 1]))


@row
def a_swap_in_place(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    return compiled(f)


@row
def a_list_argument_whose_tensors_are_written(compiled: Compiled):
    def f(xs: list[torch.Tensor]) -> torch.Tensor:
        for x in xs:
            x.add_(1)
        return xs[0] + xs[1]

    g = compiled(f)
    return lambda x, y: g([x, y])


@row
def foreach_in_place(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([x, y], 1.5)
        torch._foreach_mul_([x, y], [y.clone(), x.clone()])
        return x - y

    return compiled(f)


@row
def written_then_broken(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        torch._dynamo.graph_break()
        x.mul_(2)
        return x[0] + x[1]

    return compiled(f)


@row
def an_input_written_before_an_exception(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        torch._dynamo.graph_break()
        if x.sum().item() > 0:
            raise ValueError("too much")
        return x

    return compiled(f)


@row(fast=True)
def results_of_an_in_place_call_are_kept(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = y[1:]
        z.add_(5)
        return y, z

    g = compiled(f)
    return lambda x, y: [g(x), g(y)]


@row
def data_is_written(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = g(x)
        x.data.add_(1)
        return [a, g(x)]

    return call
