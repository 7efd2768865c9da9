"""Tensors of shape [4, 4] and dtype float32, as their shape says, that are not what a recording takes them for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

SHAPE = (4, 4)
_torch: Any = torch
"""For what torch does not export."""


class Wrapper(torch.Tensor):
    """Answers for itself, and has no memory."""

    @staticmethod
    def __new__(cls, sizes: str | None = None) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(
            cls, SHAPE, dtype=torch.float32, dispatch_sizes_strides_policy=sizes, dispatch_layout=sizes is not None
        )

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a wrapper was asked")


class Named(torch.Tensor):
    """With memory, and a class of its own."""


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.randn(SHAPE)


def resized(nbytes: int, offset: int = 0) -> torch.Tensor:
    made = torch.randn(offset + 16)[offset:].view(SHAPE)
    made.untyped_storage().resize_(nbytes)
    return made


def over_nothing() -> torch.Tensor:
    storage = torch._C._construct_storage_from_data_pointer(0, torch.device("cpu"), 64)
    return torch.empty(0).set_(storage, 0, SHAPE, (4, 1))


def undressed() -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        return Wrapper().as_subclass(torch.Tensor)


def swapped() -> torch.Tensor:
    made, other = torch.randn(SHAPE), Wrapper()
    torch.utils.swap_tensors(made, other)
    return made


def functional() -> torch.Tensor:
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(torch.randn(SHAPE))


def escaped(transform: Callable[..., Any], *shape: int) -> torch.Tensor:
    """What a transform of torch.func hands to a function, taken out of it."""
    kept: list[torch.Tensor] = []
    transform(lambda x: (kept.append(x), x.sum())[1])(torch.randn(shape))
    return kept[0]


MAKERS: Mapping[str, Callable[[], torch.Tensor]] = {
    "fake": fake,
    "fake parameter": lambda: nn.Parameter(fake()),
    "wrapper": Wrapper,
    "wrapper with sizes of its own": lambda: Wrapper("sizes"),
    "swapped": swapped,
    "undressed wrapper": undressed,
    "over nothing": over_nothing,
    "freed": lambda: resized(0),
    "cut short": lambda: resized(32),
    "cut short behind an offset": lambda: resized(220, offset=50),
    "functional": functional,
    "functional in C++": lambda: _torch._to_functional_tensor(torch.randn(SHAPE)),
    "batched": lambda: escaped(torch.vmap, 3, 4, 4),
    "within grad": lambda: escaped(torch.func.grad, 4, 4),
    "zeros": lambda: _torch._efficientzerotensor(SHAPE),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(4)] * 4),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(SHAPE), 0.1, 0, torch.quint8),
    "sparse": lambda: torch.randn(SHAPE).to_sparse(),
    "for mkldnn": lambda: torch.randn(SHAPE).to_mkldnn(),
    "on meta": lambda: torch.empty(SHAPE, device="meta"),
    "uninitialized": nn.UninitializedParameter,
    "of a class of its own": lambda: torch.randn(SHAPE).as_subclass(Named),
}
PLAIN: Mapping[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(SHAPE),
    "parameter": lambda: nn.Parameter(torch.randn(SHAPE), requires_grad=False),
    "buffer": lambda: nn.Buffer(torch.randn(SHAPE)),
    "to be copied lazily": lambda: _torch._lazy_clone(torch.randn(SHAPE)),
    "shared": lambda: torch.randn(SHAPE).share_memory_(),
    "of somebody else's memory": lambda: torch.frombuffer(bytearray(64), dtype=torch.float32).view(SHAPE),
    "behind an offset": lambda: torch.randn(6, 4)[2:],
}
