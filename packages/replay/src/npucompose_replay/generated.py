"""The operator that calls a kernel that a compiler generated: a function in C of pointers and whole numbers.

    air::generated(read, written, order, numbers, address, process)

`order` has a letter for each parameter: the next tensor of `read` ("r") or `written` ("w"), or the next number ("n").
Here it is called by the binding that the compiler made; the native replayer calls the function at `address` itself.
`process` is the one that loaded it, 0 where it asks for no threads.

# Note [A fixed number of threads]
A kernel may ask OpenMP for as many threads as torch had when it was generated. That is right whatever torch has now.
In a child of fork() it is not: OpenMP's threads were the parent's, and the thread that forked waits for them for ever.
On a thread that began after the fork OpenMP starts threads of its own, so there such kernels run on one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch
from attrs import field, frozen

from npucompose.ops.definitions import define_missing

SCHEMAS = {
    "generated": "generated(Tensor[] read, Tensor(a!)[] written, str order, int[] numbers, int address, int process) "
    "-> ()"
}


@frozen(kw_only=True, eq=False)
class GeneratedKernel:
    """A kernel in a library that stays loaded as long as the process lives."""

    name: str
    order: str
    address: int
    """Of the function in C."""
    binding: Callable[..., Any]
    """Called with the parameters in order."""
    library: str = ""
    """The file that it is in; empty for one that is in none that is known."""
    parallel: bool = False
    """Whether it may ask for threads; see Note [A fixed number of threads]."""
    loaded_by: int = field(init=False, factory=os.getpid)
    """The process."""


ENTRY = "kernel"
"""The name of the function in its library."""
_kernels: dict[int, GeneratedKernel] = {}


def known(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel, which `air::generated` can be called with from now on."""
    define_missing("air", SCHEMAS, {"generated": (_generated, None)})
    return _kernels.setdefault(kernel.address, kernel)


def of_address(address: int) -> GeneratedKernel:
    return _kernels[address]


def from_library(library: str, *, name: str, order: str, parallel: bool) -> GeneratedKernel:
    """A kernel of a library of which nobody made a binding: it is called through ctypes; OSError, AttributeError."""
    function = entry(library)
    address = address_of(function)

    def binding(*given: Any) -> None:
        kinds = zip(order, given, strict=True)
        function(*(ctypes.c_int64(one) if kind == "n" else ctypes.c_void_p(one.data_ptr()) for kind, one in kinds))

    return known(
        GeneratedKernel(name=name, order=order, address=address, library=library, binding=binding, parallel=parallel)
    )


@cache
def entry(library: str) -> Any:
    """The function of a library, which stays loaded; AttributeError where it exports none."""
    return getattr(ctypes.CDLL(library), ENTRY)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def arguments(kernel: GeneratedKernel, given: Sequence[Any]) -> tuple[list[Any], list[Any], str, list[int], int, int]:
    """What `air::generated` takes for a call of the kernel with `given`, its parameters in order."""
    kinds: dict[str, list[Any]] = {"r": [], "w": [], "n": []}
    for kind, value in zip(kernel.order, given, strict=True):
        kinds[kind].append(value)
    process = kernel.loaded_by if kernel.parallel else 0
    return kinds["r"], kinds["w"], kernel.order, kinds["n"], kernel.address, process


def _generated(
    read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    order: str,
    numbers: Sequence[int],
    address: int,
    process: int,
) -> None:
    kinds = {"r": iter(read), "w": iter(written), "n": iter(numbers)}
    call = partial(_kernels[address].binding, *(next(kinds[kind]) for kind in order))
    if process not in (0, os.getpid()):
        with ThreadPoolExecutor() as own:
            own.submit(call).result()
    else:
        call()
