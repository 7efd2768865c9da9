"""Results that somebody still holds: in lists, in views, in what is computed from several calls."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from replay_tests.semantics.rows import Compiled, row


def frozen_linear() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4).requires_grad_(False)


@row(fast=True)
def three_call_sites_behind_a_graph_break(compiled: Compiled):
    linear = frozen_linear()

    def block(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        if y.sum().item() > 1e9:
            raise ValueError
        return y

    return compiled(lambda x: torch.stack([block(x), block(x + 1), block(x + 2)]))


@row(fast=True)
def difference_of_two_calls(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)
    return lambda x, y: f(x) - f(y)


@row(fast=True)
def five_results_in_a_list(compiled: Compiled):
    f = compiled(lambda x: x.sin() * 2)
    return lambda x: [f(x + k) for k in range(5)]


@row(fast=True)
def a_module_called_twice_in_one_expression(compiled: Compiled):
    f = compiled(frozen_linear())

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return f(x) @ f(y).t()

    return call


@row(fast=True)
def fed_back_to_itself(compiled: Compiled):
    f = compiled(lambda x: x.cos() + 0.5)
    return lambda x: f(f(f(x)))


@row(fast=True)
def fed_back_beside_its_predecessor(compiled: Compiled):
    f = compiled(lambda new, old: new * 0.5 + old)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        states = [x, x + 1]
        for _ in range(6):
            states.append(f(states[-1], states[-2]))
        return states

    return call


@row(fast=True)
def fed_back_across_calls(compiled: Compiled):
    f = compiled(lambda x, h: (x + h).tanh())
    state: dict[str, Any] = {"h": torch.zeros(3, 4), "all": []}

    def call(x: torch.Tensor) -> torch.Tensor:
        state["h"] = f(x, state["h"])
        state["all"].append(state["h"])
        return state["h"]

    return call, state


@row(fast=True)
def a_view_returned_from_the_graph(compiled: Compiled):
    f = compiled(lambda x: (x + 1)[1:, ::2])
    return lambda x, y: (f(x), f(y))


@row(fast=True)
def a_slice_of_a_result_outlives_it(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        rows = [f(x)[0], f(y)[1:2]]
        f(x * 3)
        return rows

    return call


@row(fast=True)
def only_numpy_holds_the_memory(compiled: Compiled):
    f = compiled(lambda x: x * 3)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        arrays = [f(x).numpy(), f(y).numpy()]
        f(x + y)
        return arrays

    return call


@row(fast=True)
def only_a_detached_tensor_holds_the_memory(compiled: Compiled):
    f = compiled(lambda x: x.exp())

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        kept = [f(x).detach()]
        kept.append(f(y).detach())
        return kept

    return call


@row
def only_a_storage_holds_the_memory(compiled: Compiled):
    f = compiled(lambda x: x + 2)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        storage = f(x).untyped_storage()
        f(y)
        return torch.empty(0).set_(storage, 0, (3, 4))

    return call


@row
def only_a_memoryview_holds_the_memory(compiled: Compiled):
    f = compiled(lambda x: x + 2)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[float]:
        seen = memoryview(f(x).numpy())
        f(y)
        return [v for line in seen.tolist() for v in line]

    return call


@row
def only_dlpack_holds_the_memory(compiled: Compiled):
    f = compiled(lambda x: x * x)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        other = torch.from_dlpack(f(x))
        f(y)
        return other

    return call


@row
def a_view_of_another_dtype(compiled: Compiled):
    f = compiled(lambda x: x - 1)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bits = f(x).view(torch.int32)
        f(y)
        return bits

    return call


@row
def a_transposed_result(compiled: Compiled):
    f = compiled(lambda x: (x * 2).t())
    return lambda x, y: f(x) @ f(y).t()


@row(fast=True)
def one_of_two_results_is_dropped(compiled: Compiled):
    f = compiled(lambda x: (x + 1, x * 2))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x + k)[k % 2] for k in range(4)]

    return call


@row(fast=True)
def two_results_over_one_memory(compiled: Compiled):
    def g(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y[:2], y.t()

    f = compiled(g)

    def call(x: torch.Tensor) -> list[Any]:
        first = f(x)
        second = f(x * 2)
        first[0].mul_(3)
        return [first, second]

    return call


@row
def the_same_result_twice(compiled: Compiled):
    def g(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y

    f = compiled(g)
    return lambda x, y: (f(x), f(y))


@row(fast=True)
def a_result_is_written_by_its_holder(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        first = f(x)
        first.add_(100)
        second = f(x)
        first.zero_()
        return [first, second, f(x)]

    return call


@row
def a_result_that_is_dead_in_a_cycle(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        cycle: list[Any] = [f(x)]
        cycle.append(cycle)
        other = f(y)
        return cycle[0] + other

    return call


@row
def a_weak_reference_does_not_hold(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> list[Any]:
        result = f(x)
        seen = weakref.ref(result)
        alive = seen() is not None
        del result
        return [alive, seen() is None, f(x + 1)]

    return call


@row
def results_of_two_programs_in_turns(compiled: Compiled):
    f, g = compiled(lambda x: x + 1), compiled(lambda x: x * 3)

    def call(x: torch.Tensor) -> torch.Tensor:
        a, b = f(x), g(x)
        c, d = f(b), g(a)
        return torch.cat([a, b, c, d])

    return call


@row
def one_helper_in_two_branches_with_breaks(compiled: Compiled):
    def helper(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        return y * 2

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = helper(x), helper(y)
        return a - b

    return compiled(g)


@row
def a_helper_in_a_loop_with_breaks(compiled: Compiled):
    def helper(x: torch.Tensor, k: int) -> torch.Tensor:
        y = x.roll(1, 0)
        torch._dynamo.graph_break()
        return y

    def g(x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for k in range(5):
            found.append(helper(found[-1], 0) + k)
        return torch.stack(found)

    return compiled(g)


@row
def recursion_with_breaks(compiled: Compiled):
    def g(x: torch.Tensor, depth: int) -> torch.Tensor:
        y = x.tanh()
        torch._dynamo.graph_break()
        return y if depth == 0 else y - g(y * 2, depth - 1)

    f = compiled(g)
    return lambda x: f(x, 3)


@row
def zero_dimensional_results(compiled: Compiled):
    f = compiled(lambda x: x.sum())
    return lambda x, y: (f(x), f(y), f(x) / f(y))


@row
def a_swap_of_two_results(compiled: Compiled):
    f = compiled(lambda a, b: (b + 1, a * 2))

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = f(x, y)
        for _ in range(3):
            a, b = f(a, b)
        return a, b

    return call
