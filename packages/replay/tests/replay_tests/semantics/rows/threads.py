"""Calls from several threads: every result belongs to its call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def side_by_side(call: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result for each input, from two threads at once; warmed up first on this one."""
    call(inputs[0])
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(call, inputs))


@row(fast=True)
def two_threads_on_one_function(compiled: Compiled):
    f = compiled(lambda x: (x * 2).sin() @ torch.ones(4, 4))
    return lambda x: side_by_side(f, [x + k for k in range(20)])


@row
def two_threads_on_one_module(compiled: Compiled):
    f = compiled(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).requires_grad_(False))
    return lambda x: side_by_side(f, [x + k for k in range(20)])


@row
def two_threads_that_copy_at_once(compiled: Compiled):
    f = compiled(lambda x: x.exp().cumsum(0))
    return lambda x: side_by_side(lambda y: f(y).clone(), [x * 0.1 * k for k in range(20)])


@row
def two_threads_on_two_functions(compiled: Compiled):
    f, g = compiled(lambda x: x.relu() @ x.t()), compiled(lambda x: x.tanh() @ x.t())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        f(x), g(x)
        with ThreadPoolExecutor(max_workers=2) as pool:
            a = pool.map(f, [x + k for k in range(10)])
            b = pool.map(g, [x - k for k in range(10)])
            return [*a, *b]

    return call


@row
def two_threads_with_two_shapes(compiled: Compiled):
    f = compiled(lambda x: x.softmax(-1).sum(0))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        f(x), f(x[:2])
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(f, [x[: 2 + k % 2] + k for k in range(20)]))

    return call


@row
def a_first_call_from_two_threads(compiled: Compiled):
    f = compiled(lambda x: x * 3 - 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(f, [x, x + 1, x + 2, x + 3]))

    return call


@row
def a_result_is_freed_by_another_thread(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        held = [f(x + k) for k in range(8)]
        thread = threading.Thread(target=lambda: [held.pop(0) for _ in range(4)])
        thread.start()
        later = [f(x - k) for k in range(8)]
        thread.join()
        return [*held, *later]

    return call


@row
def a_result_is_read_by_another_thread(compiled: Compiled):
    f = compiled(lambda x: x.cos())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            sums = [pool.submit(lambda y: y.sum() * 1, f(x + k)) for k in range(10)]
            return [done.result() for done in sums]

    return call


@row
def a_thread_without_gradients(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        def quietly(y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return f(y)

        return side_by_side(quietly, [x + k for k in range(6)])

    return call


@row
def a_counting_buffer_in_one_thread_at_a_time(compiled: Compiled):
    count = torch.zeros(())

    def f(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * count

    g = compiled(f)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in range(4):
            thread = threading.Thread(target=lambda k=k: found.append(g(x + k)))
            thread.start()
            thread.join()
        return found

    return call, {"count": count}
