"""Operators of the user's own: functional, writing, counting, differentiable, without a fake implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from replay_tests.semantics.rows import Compiled, row

STATE: dict[str, Any] = {"count": 0, "tensor": torch.zeros(4), "kept": []}


def begin() -> dict[str, Any]:
    STATE["count"] = 0
    STATE["tensor"] = torch.zeros(4)
    STATE["kept"] = []
    return STATE


@torch.library.custom_op("semantics::counts", mutates_args=())
def counts(x: torch.Tensor) -> torch.Tensor:
    STATE["count"] += 1
    return x + STATE["count"]


@torch.library.custom_op("semantics::remembers", mutates_args=())
def remembers(x: torch.Tensor) -> torch.Tensor:
    STATE["tensor"] = STATE["tensor"] * 0.5 + x[0]
    return x + STATE["tensor"]


@torch.library.custom_op("semantics::keeps", mutates_args=())
def keeps(x: torch.Tensor) -> torch.Tensor:
    STATE["kept"].append(x)
    return x + 1


@torch.library.custom_op("semantics::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor, power: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.power(x.numpy(), power))


@torch.library.custom_op("semantics::adds_one", mutates_args={"x"})
def adds_one(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("semantics::swaps", mutates_args={"x", "y"})
def swaps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return kept.sum()


@torch.library.custom_op("semantics::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("semantics::two_results", mutates_args=())
def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(0), x.amin(0)


@torch.library.custom_op("semantics::as_many", mutates_args=())
def as_many(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [x * k for k in range(n)]


@torch.library.custom_op("semantics::positive_rows", mutates_args=())
def positive_rows(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0] > 0].clone()


@torch.library.custom_op("semantics::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


for same_form in (counts, remembers, keeps, through_numpy, cubed):
    same_form.register_fake(lambda x, *_: torch.empty_like(x))
two_results.register_fake(lambda x: (x.new_empty(x.shape[1:]), x.new_empty(x.shape[1:])))
as_many.register_fake(lambda x, n: [torch.empty_like(x) for _ in range(n)])
swaps.register_fake(lambda x, y: x.new_empty(()))
positive_rows.register_fake(lambda x: x.new_empty((torch.library.get_ctx().new_dynamic_size(), x.shape[1])))
cubed.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@row(fast=True)
def an_operator_counts_its_calls(compiled: Compiled):
    return compiled(lambda x: counts(x) * 2), begin()


@row(fast=True)
def an_operator_remembers_tensors(compiled: Compiled):
    return compiled(lambda x: remembers(x * 2).relu()), begin()


@row
def an_operator_keeps_its_argument(compiled: Compiled):
    return compiled(lambda x: keeps(x * 2).relu() * 3), begin()


@row(fast=True)
def an_operator_keeps_an_input_that_is_written_after_the_call(compiled: Compiled):
    f = compiled(lambda x: keeps(x) * 2)

    def call(x: torch.Tensor) -> torch.Tensor:
        result = f(x)
        x.add_(1)
        return result

    return call, begin()


@row
def an_operator_keeps_a_view_of_an_input(compiled: Compiled):
    f = compiled(lambda x: (keeps(x.t()[1:]) * 2, x.view(-1)))

    def call(x: torch.Tensor) -> torch.Tensor:
        result, whole = f(x)
        whole.mul_(2)
        return result

    return call, begin()


@row
def an_operator_keeps_a_weight_that_is_trained(compiled: Compiled):
    linear = torch.nn.Linear(4, 4).requires_grad_(False)
    f = compiled(lambda x: linear(x) + keeps(linear.bias))

    def call(x: torch.Tensor) -> torch.Tensor:
        result = f(x)
        linear.bias.add_(1)
        return result

    return call, begin()


@row(fast=True)
def an_operator_keeps_a_part_of_a_result_that_is_written_after_the_call(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2 + 1
        return y, keeps(y[1:]) * 2

    f = compiled(f)

    def call(x: torch.Tensor) -> torch.Tensor:
        y, result = f(x)
        y.add_(1)
        return result

    return call, begin()


@row
def an_operator_keeps_an_input_that_the_graph_writes(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = keeps(x)
        x.mul_(2)
        return y + x

    return compiled(f), begin()


@row
def a_counting_operator_twice_in_a_graph(compiled: Compiled):
    return compiled(lambda x: counts(x) - counts(x * 2)), begin()


@row(fast=True)
def a_functional_operator(compiled: Compiled):
    return compiled(lambda x: through_numpy(x + 1) * 2)


@row
def an_operator_with_other_numbers(compiled: Compiled):
    f = compiled(lambda x, n: through_numpy(x, n))
    return lambda x: [f(x, 2), f(x, 3), f(x, 2)]


@row(fast=True)
def an_operator_writes_its_argument(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        adds_one(y)
        return y + x

    return compiled(f)


@row
def an_operator_writes_an_input(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        adds_one(x)
        return x * 2

    return compiled(f)


@row
def an_operator_writes_a_view_of_an_input(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        adds_one(x[1])
        return x.sum(0)

    return compiled(f)


@row
def an_operator_writes_two_inputs(compiled: Compiled):
    return compiled(lambda x, y: swaps(x, y) + x[0, 0])


@row
def an_operator_writes_a_buffer(compiled: Compiled):
    table = torch.zeros(3, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        adds_one(table)
        return table * x

    return compiled(f), {"table": table}


@row
def an_operator_without_a_fake(compiled: Compiled):
    return compiled(lambda x: no_fake(x + 1) * 2)


@row
def an_operator_with_two_results(compiled: Compiled):
    f = compiled(lambda x: two_results(x * 2))
    return lambda x, y: [f(x), f(y)]


@row
def an_operator_with_a_list_of_results(compiled: Compiled):
    return compiled(lambda x: as_many(x, 3))


@row
def an_operator_whose_size_depends_on_data(compiled: Compiled):
    return compiled(lambda x: positive_rows(x) * 2)


@row
def an_operator_with_a_gradient(compiled: Compiled):
    f = compiled(lambda x: cubed(x) * 2)

    def call(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_(True)
        f(x).sum().backward()
        assert x.grad is not None
        return x.grad

    return call


@row
def an_autograd_function(compiled: Compiled):
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 10

    f = compiled(lambda x: Doubles.apply(x) + 1)

    def call(x: torch.Tensor):
        y = x.clone().requires_grad_(True)
        f(y).sum().backward()
        with torch.no_grad():
            return f(x), y.grad

    return call


@row
def results_of_an_operator_are_kept(compiled: Compiled):
    f = compiled(lambda x: through_numpy(x))
    return lambda x, y: f(x) - f(y)


@row
def a_disabled_function(compiled: Compiled):
    calls = {"count": 0}

    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        calls["count"] += 1
        return x * calls["count"]

    return compiled(lambda x: outside(x + 1) * 2), calls


@row
def allowed_in_graph(compiled: Compiled):
    @torch.compiler.allow_in_graph
    def inside(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    return compiled(lambda x: inside(x) + 1)
