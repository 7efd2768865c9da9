"""State that no key of a tensor shows: tangents, filled memory, lazy signs, transforms, modes, defaults, the stance."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.forward_ad as fw
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from replay_tests.semantics.rows import Compiled, row


def tangent(f: Any, *inputs: torch.Tensor) -> list[Any]:
    """Value and tangent of the result."""
    with fw.dual_level():
        result = f(*(fw.make_dual(x, x * 2 + 1) for x in inputs))
        value, found = fw.unpack_dual(result)
        return [value.clone(), None if found is None else found.clone()]


@row(fast=True)
def tangents_of_an_input(compiled: Compiled):
    f = compiled(lambda x: x.sin() * 2)
    return lambda x: [f(x), tangent(f, x), f(x)]


@row
def tangents_of_two_inputs(compiled: Compiled):
    f = compiled(lambda x, y: x * y + x.exp())
    return lambda x, y: [f(x, y), tangent(f, x, y), f(x, y)]


@row
def a_tangent_of_one_of_two_inputs(compiled: Compiled):
    f = compiled(lambda x, y: x * y)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        f(x, y)
        return tangent(lambda dual: f(dual, y), x)

    return call


@row
def tangents_through_a_layer(compiled: Compiled):
    f = compiled(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False))
    return lambda x: [f(x), tangent(f, x)]


@row
def a_level_without_tangents(compiled: Compiled):
    f = compiled(lambda x: x.cos() + 1)

    def call(x: torch.Tensor) -> list[Any]:
        with fw.dual_level():
            return [f(x), f(x)]

    return call


@contextlib.contextmanager
def filled(on: bool = True) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def with_filling(compiled: Compiled, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    f = compiled(function)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with filled():
            return [f(x), f(x)]

    return call


@row(fast=True)
def filled_memory(compiled: Compiled):
    return with_filling(compiled, lambda x: torch.empty(4) + x)


@row
def filled_memory_like_another(compiled: Compiled):
    return with_filling(compiled, lambda x: torch.empty_like(x) + x)


@row
def filled_memory_of_a_tensors_type(compiled: Compiled):
    return with_filling(compiled, lambda x: x.new_empty(3, 4) * x)


@row
def filled_memory_of_whole_numbers(compiled: Compiled):
    return with_filling(compiled, lambda x: torch.empty(4, dtype=torch.int64) + x.long())


@row
def filled_memory_that_is_returned(compiled: Compiled):
    return with_filling(compiled, lambda x: torch.empty(4))


@row
def filled_memory_on_and_off(compiled: Compiled):
    f = compiled(lambda x: (torch.empty_like(x) + x, x * 2))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for on in (True, False, True):
            with filled(on):
                sums, doubled = f(x)
                found += [sums, doubled] if on else [doubled]
        return found

    return call


@row
def deterministic_algorithms_on_and_off(compiled: Compiled):
    index = torch.tensor([0, 1, 0])
    f = compiled(lambda x: torch.zeros(2, 4).index_add(0, index, x) + x.cumsum(0)[:2])

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with filled():
            one = f(x)
        return [one, f(x)]

    return call


def negative(k: int) -> tuple[torch.Tensor, ...]:
    """Numbers whose sign is put in when they are read."""
    return (torch.randn(4, 4, dtype=torch.complex64).conj().imag,)


def conjugate(k: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4, dtype=torch.complex64).conj(),)


@row(fast=True, inputs=negative)
def a_lazy_sign(compiled: Compiled):
    return compiled(lambda x: x + 1)


@row(inputs=negative)
def a_product_of_lazy_signs(compiled: Compiled):
    return compiled(lambda x: x @ x)


@row(inputs=negative)
def a_lazy_sign_that_is_written(compiled: Compiled):
    return compiled(lambda x: x.add_(1))


@row(inputs=lambda k: (torch.randn(1_000_000, dtype=torch.complex64).conj().imag,))
def a_long_row_of_lazy_signs(compiled: Compiled):
    return compiled(lambda x: x * 3)


@row(inputs=negative)
def a_lazy_sign_before_a_layer(compiled: Compiled):
    return compiled(nn.Linear(4, 4).requires_grad_(False))


@row(inputs=conjugate)
def a_lazy_conjugate(compiled: Compiled):
    return compiled(lambda z: (z * 2).real + z.imag)


@row(inputs=conjugate)
def a_lazy_conjugate_that_is_returned(compiled: Compiled):
    return compiled(lambda z: z.resolve_conj() + 1)


@row(inputs=lambda k: (torch.randn(4, 4, dtype=torch.complex64),))
def a_lazy_sign_made_inside(compiled: Compiled):
    return compiled(lambda z: z.conj().imag + 1)


@row(inputs=lambda k: (torch.randn(4, 4, dtype=torch.complex64),))
def lazy_signs_in_turns(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)

    def call(z: torch.Tensor) -> list[torch.Tensor]:
        return [f(z.imag), f(z.conj().imag), f(z.imag.clone())]

    return call


@row(fast=True)
def a_map_over_the_first_dimension(compiled: Compiled):
    f = compiled(lambda x: x.sin() + 1)
    return lambda x: [f(x), torch.vmap(f)(x), f(x)]


@row
def a_gradient_by_a_transform(compiled: Compiled):
    f = compiled(lambda x: (x.sin() * x).sum())
    return lambda x: [f(x), torch.func.grad(f)(x), f(x)]


@row
def a_tangent_by_a_transform(compiled: Compiled):
    f = compiled(lambda x: x.sin() * x)
    return lambda x: [f(x), list(torch.func.jvp(f, (x,), (torch.ones_like(x),))), f(x)]


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.Tensor.sin else result


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@row(fast=True)
def a_mode_that_changes_functions(compiled: Compiled):
    f = compiled(lambda x: x.sin() * 2)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        plain = f(x)
        with _Functions():
            changed = f(x)
        return [plain, changed, f(x)]

    return call


@row
def a_mode_that_sees_operators(compiled: Compiled):
    f = compiled(lambda x: x.sin() * 2)

    def call(x: torch.Tensor) -> list[Any]:
        plain = f(x)
        with _Operators() as mode:
            seen = f(x)
        return [plain, seen, "aten.sin.default" in mode.seen, f(x)]

    return call


@row
def a_default_dtype_in_turns(compiled: Compiled):
    f = compiled(lambda x: torch.ones(4) / 3 + x)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found.append(f(x))
        return found

    return call


@row
def a_default_device(compiled: Compiled):
    f = compiled(lambda x: torch.ones(4) + x)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        plain = f(x)
        with torch.device("cpu"):
            return [plain, f(x), f(x)]

    return call


@row
def a_precision_of_products(compiled: Compiled):
    f = compiled(lambda x: x @ x.T)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        before = torch.get_float32_matmul_precision()
        found = [f(x)]
        try:
            torch.set_float32_matmul_precision("medium")
            found.append(f(x))
        finally:
            torch.set_float32_matmul_precision(before)
        return [*found, f(x)]

    return call


@row(fast=True)
def a_stance_in_turns(compiled: Compiled):
    seen: list[str] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            seen.append("eager")
        return x * 2 + 1

    f = compiled(model)

    def call(x: torch.Tensor) -> list[Any]:
        plain = f(x)
        with torch.compiler.set_stance("force_eager"):
            before = len(seen)
            eager = f(x)
            return [plain, eager, len(seen) - before, f is not model]

    return lambda x: call(x)[:3]
