"""The state around a call: autocast, gradient modes, inference mode, default dtype, number of threads."""

from __future__ import annotations

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def quiet_linear() -> nn.Linear:
    return nn.Linear(4, 4).requires_grad_(False)


@row(fast=True)
def autocast_on_and_off(compiled: Compiled):
    f = compiled(quiet_linear())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        plain = f(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = f(x)
        return [plain, low, f(x)]

    return call


@row
def autocast_inside(compiled: Compiled):
    linear = quiet_linear()

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x)
        return y.float() + linear(x)

    return compiled(f)


@row
def autocast_to_two_dtypes(compiled: Compiled):
    f = compiled(quiet_linear())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype=dtype):
                found.append(f(x))
        return found

    return call


@row(fast=True)
def inference_mode_on_and_off(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            a = f(x)
        return [a, f(x)]

    return call


@row
def inference_tensors_as_inputs(compiled: Compiled):
    f = compiled(lambda x: x.sin() + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            y = x + 1
            a = f(y)
        return [a, f(x), y]

    return call


@row
def no_grad_on_and_off(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            a = f(x)
        b = f(x)
        with torch.no_grad():
            return [a, b, f(x)]

    return call


@row
def no_grad_inside(compiled: Compiled):
    module = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = module(x)
        return y * 2

    return compiled(f)


@row
def enable_grad_inside_no_grad(compiled: Compiled):
    def f(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        with torch.enable_grad():
            inside = torch.is_grad_enabled()
            y = x * 2
        return inside, y

    g = compiled(f)

    def call(x: torch.Tensor):
        with torch.no_grad():
            return g(x)

    return call


@row
def set_grad_enabled_left_behind(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x + 1

    g = compiled(f)

    def call(x: torch.Tensor):
        y = g(x)
        left = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return y, left

    return call


@row
def no_grad_as_a_decorator(compiled: Compiled):
    module = nn.Linear(4, 4)

    @torch.no_grad()
    def f(x: torch.Tensor) -> torch.Tensor:
        return module(x).relu()

    return compiled(f)


@row
def default_dtype_changes(compiled: Compiled):
    f = compiled(lambda x: x.double() + torch.ones(3, 4) / 3)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        torch.set_default_dtype(torch.float64)
        b = f(x)
        torch.set_default_dtype(torch.float32)
        return [a, b, f(x)]

    return call


@row(threads=2, inputs=lambda k: (torch.randn(64, 64),))
def the_number_of_threads_changes(compiled: Compiled):
    f = compiled(lambda x: (x @ x).relu().sum(0))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        torch.set_num_threads(1)
        b = f(x)
        torch.set_num_threads(2)
        return [a, b]

    return call


@row
def deterministic_algorithms(compiled: Compiled):
    f = compiled(lambda x, at: torch.zeros(4).index_add(0, at, x[0]))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        at = torch.tensor([0, 1, 0, 2])
        a = f(x, at)
        torch.use_deterministic_algorithms(True)
        try:
            return [a, f(x, at)]
        finally:
            torch.use_deterministic_algorithms(False)

    return call


@row
def under_a_default_device(compiled: Compiled):
    f = compiled(lambda x: x + torch.arange(4))

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            return f(x)

    return call
