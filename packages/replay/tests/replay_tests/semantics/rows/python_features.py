"""Python around tensors: generators, dataclasses, closures, globals, exceptions, loops over numbers."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
from typing import Any

import numpy as np
import torch

from replay_tests.semantics.rows import Compiled, row

FACTOR = 2.0
HISTORY: list[float] = []


@row(fast=True)
def a_global_number_changes(compiled: Compiled):
    global FACTOR
    FACTOR = 2.0
    f = compiled(lambda x: x * FACTOR)

    def call(x: torch.Tensor) -> torch.Tensor:
        global FACTOR
        FACTOR += 1
        return f(x)

    return call


@row
def a_closure_over_a_number(compiled: Compiled):
    by = 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * by

    g = compiled(f)

    def call(x: torch.Tensor) -> torch.Tensor:
        nonlocal by
        by += 1
        return g(x)

    return call


@row(fast=True)
def early_returns(compiled: Compiled):
    def f(x: torch.Tensor, how: str) -> torch.Tensor:
        if how == "none":
            return x
        if x.sum().item() > 0:
            return x * 2
        y = x.abs()
        return y + 1

    g = compiled(f)
    return lambda x: [g(x, "none"), g(x, "some"), g(-x, "some")]


@row(fast=True)
def a_loop_over_item(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        for _ in range(int(n.item())):
            x = x * 0.5 + 1
        return x

    g = compiled(f)
    return lambda x: [g(x, torch.tensor(k)) for k in (1, 3, 2)]


@row
def a_while_loop_until_small(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        while x.abs().max().item() > 0.1:
            x = x / 3
        return x

    return compiled(f)


@row
def print_in_the_middle(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("shape", tuple(y.shape))
        return y + 1

    return compiled(f)


@row
def an_exception_raised_and_caught_inside(compiled: Compiled):
    def f(x: torch.Tensor, bad: bool) -> torch.Tensor:
        try:
            if bad:
                raise KeyError("x")
            return x + 1
        except KeyError:
            return x - 1
        finally:
            HISTORY.append(float(bad))

    g = compiled(f)
    HISTORY.clear()
    return lambda x: [g(x, False), g(x, True)], HISTORY


@row
def an_exception_that_gets_out(compiled: Compiled):
    def f(x: torch.Tensor, limit: float) -> torch.Tensor:
        y = x + 1
        if limit < 0:
            raise ValueError("limit is negative")
        return y * limit

    g = compiled(f)

    def call(x: torch.Tensor) -> list[Any]:
        found: list[Any] = []
        for limit in (1.0, -1.0, 2.0):
            try:
                found.append(g(x, limit))
            except ValueError as error:
                found.append(str(error))
        return found

    return call


@row
def an_error_of_torch(compiled: Compiled):
    f = compiled(lambda x, y: x @ y)

    def call(x: torch.Tensor) -> list[Any]:
        found: list[Any] = [f(x, x.t())]
        try:
            f(x, x)
        except RuntimeError:
            found.append("shapes do not fit")
        return [*found, f(x, x.t())]

    return call


@row
def an_index_out_of_range_then_a_good_one(compiled: Compiled):
    f = compiled(lambda table, at: torch.nn.functional.embedding(at, table) * 2)

    def call(x: torch.Tensor) -> list[Any]:
        found: list[Any] = [f(x, torch.tensor([0, 2]))]
        try:
            f(x, torch.tensor([0, 7]))
        except (IndexError, RuntimeError):
            found.append("out of range")
        return [*found, f(x, torch.tensor([1, 1]))]

    return call


@row
def a_generator_inside(compiled: Compiled):
    def parts(x: torch.Tensor):
        for i in range(3):
            yield x[i] * i

    return compiled(lambda x: torch.stack(list(parts(x))))


@row
def star_arguments(compiled: Compiled):
    def f(*xs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return sum(xs, torch.zeros(3, 4)) * named.get("by", torch.ones(()))

    g = compiled(f)
    return lambda x, y: [g(x), g(x, y), g(x, y, x, by=y), g()]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0
    mask: torch.Tensor | None = None


@row(fast=True)
def a_dataclass_goes_in_and_comes_out(compiled: Compiled):
    def f(batch: Batch) -> Batch:
        y = batch.x * batch.scale
        return dataclasses.replace(batch, x=y if batch.mask is None else y * batch.mask)

    g = compiled(f)
    return lambda x, y: [g(Batch(x)), g(Batch(x, scale=3.0, mask=y))]


class Kind(enum.Enum):
    UP = 1
    DOWN = 2


@row
def an_enumeration_as_argument(compiled: Compiled):
    f = compiled(lambda x, kind: x + 1 if kind is Kind.UP else x - 1)
    return lambda x: [f(x, Kind.UP), f(x, Kind.DOWN)]


@row(fast=True)
def numbers_as_arguments(compiled: Compiled):
    f = compiled(lambda x, n, scale, on: x[:n] * scale if on else x[n:])
    return lambda x: [f(x, n, s, on) for n, s, on in ((1, 0.5, True), (2, 0.5, True), (2, 1.5, False), (1, 0.5, True))]


@row
def a_number_that_changes_each_time(compiled: Compiled):
    f = compiled(lambda x, step: x * step + step)
    count = itertools.count()
    return lambda x: f(x, next(count))


@row
def a_float_that_changes_each_time(compiled: Compiled):
    f = compiled(lambda x, rate: x - x * rate)
    count = itertools.count()
    return lambda x: f(x, 0.1 * next(count))


@row
def nested_containers(compiled: Compiled):
    def f(tree: dict[str, Any]) -> dict[str, Any]:
        a, (b, c) = tree["a"], tree["bc"]
        return {"sum": a + b, "rest": [{"c": c * 2}, (a, b)], "n": 3}

    g = compiled(f)
    return lambda x, y: g({"a": x, "bc": (y, x - y)})


@row
def a_partial_function(compiled: Compiled):
    def f(x: torch.Tensor, by: float, plus: torch.Tensor) -> torch.Tensor:
        return x * by + plus

    g = compiled(functools.partial(f, by=3.0))
    return lambda x, y: g(x, plus=y)


@row
def a_cached_python_value(compiled: Compiled):
    @functools.lru_cache
    def angle(n: int) -> float:
        return math.sqrt(n)

    f = compiled(lambda x: x * angle(x.shape[0]))
    return lambda x: f(x)


@row
def tolist_inside(compiled: Compiled):
    def f(x: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
        return list(x.flatten().split(sizes.tolist()))

    g = compiled(f)
    return lambda x: [g(x, torch.tensor([4, 8])), g(x, torch.tensor([5, 7]))]


@row
def numpy_inside(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        a = x.numpy()
        return torch.from_numpy(np.sin(a) + a.mean())

    return compiled(f)


@row
def a_data_dependent_branch(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        if (x.sum() > 0).item():
            return x + 1
        return x - 1

    return compiled(f)


@row
def truth_of_a_tensor(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.mean() > 0:
            y = y + 100
        return y - x

    return compiled(f)


@row
def a_context_manager_of_ones_own(compiled: Compiled):
    class Logs:
        def __enter__(self) -> Logs:
            HISTORY.append(1.0)
            return self

        def __exit__(self, *_: object) -> None:
            HISTORY.append(-1.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        with Logs():
            return x.exp()

    HISTORY.clear()
    return compiled(f), HISTORY


@row
def an_object_with_state(compiled: Compiled):
    class Meter:
        def __init__(self) -> None:
            self.total, self.count = torch.zeros(()), 0

        def add(self, x: torch.Tensor) -> torch.Tensor:
            self.total = self.total + x.sum()
            self.count += 1
            return self.total / self.count

    meter = Meter()
    return compiled(meter.add), meter


@row
def nothing_is_returned(compiled: Compiled):
    store: dict[str, torch.Tensor] = {}

    def f(x: torch.Tensor) -> None:
        store["x"] = x * 2

    return compiled(f), store


@row
def constants_are_returned(compiled: Compiled):
    return compiled(lambda x: (1, "two", None, 3.5, x.shape, x.dtype, (x.dim(), [])))


@row
def sets_and_strings(compiled: Compiled):
    def f(x: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
        for name in sorted(set(names)):
            x = {"relu": torch.relu, "neg": torch.neg}[name](x)
        return x

    g = compiled(f)
    return lambda x: [g(x, ("relu", "neg", "relu")), g(x, ("relu",))]
