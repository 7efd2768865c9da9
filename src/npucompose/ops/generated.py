"""The operator that calls a kernel that a compiler generated: a function in C of pointers and whole numbers.

    air::generated(read, written, order, numbers, address)

`order` has a letter for each parameter: the next tensor of `read` ("r") or `written` ("w"), or the next number ("n").
Here it is called by the binding that the compiler made; the native replayer calls the function at `address` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

from npucompose.ops.definitions import define_missing

SCHEMAS = {"generated": "generated(Tensor[] read, Tensor(a!)[] written, str order, int[] numbers, int address) -> ()"}


@frozen(kw_only=True, eq=False)
class GeneratedKernel:
    """A kernel in a library that stays loaded as long as the process lives."""

    name: str
    order: str
    address: int
    """Of the function in C."""
    binding: Callable[..., Any]
    """Called with the parameters in order."""


_kernels: dict[int, GeneratedKernel] = {}


def known(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel, which `air::generated` can be called with from now on."""
    define_missing("air", SCHEMAS, {"generated": (_generated, None)})
    return _kernels.setdefault(kernel.address, kernel)


def arguments(kernel: GeneratedKernel, given: Sequence[Any]) -> tuple[list[Any], list[Any], str, list[int], int]:
    """What `air::generated` takes for a call of the kernel with `given`, its parameters in order."""
    kinds: dict[str, list[Any]] = {"r": [], "w": [], "n": []}
    for kind, value in zip(kernel.order, given, strict=True):
        kinds[kind].append(value)
    return kinds["r"], kinds["w"], kernel.order, kinds["n"], kernel.address


def _generated(
    read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], order: str, numbers: Sequence[int], address: int
) -> None:
    kinds = {"r": iter(read), "w": iter(written), "n": iter(numbers)}
    _kernels[address].binding(*(next(kinds[kind]) for kind in order))
