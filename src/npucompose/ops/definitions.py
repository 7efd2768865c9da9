"""Defines operators that nobody else has defined, each with its kernel and its meta function; how a kernel refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from npucompose.errors import NpuComposeError

_LIBRARIES: list[torch.library.Library] = []


class UnsupportedArgument(NpuComposeError, ValueError):
    """An argument that the reference kernel does not take, or that the operator's own document forbids."""


def unsupported(op: str, argument: str, given: str, possible: str) -> UnsupportedArgument:
    """`torch.ops.npu.npu_swiglu: 'dim' is 7. Possible: 0 to 2.`"""
    return UnsupportedArgument(f"torch.ops.npu.{op}: '{argument}' {given}. {possible}")


def refuse_others(op: str, others: Mapping[str, Any], supported: str) -> None:
    """Arguments that the kernel has no use for may be left out, None, False, 0 or their empty value."""
    for name, given in others.items():
        if isinstance(given, torch.Tensor) or given not in (None, False, 0, -1, [], (), ""):
            raise unsupported(op, name, "is not supported here", f"Supported: {supported}.")


def define_missing(
    namespace: str,
    schemas: Mapping[str, str],
    kernels: Mapping[str, tuple[Callable[..., Any], Callable[..., Any] | None]],
) -> None:
    """`torch.ops.<namespace>.<name>` for each name of `kernels`, {name: (kernel, meta)}; what is there stays.

    Without a meta function the kernel is run for meta and fake tensors too.
    """
    for name, (kernel, meta) in kernels.items():
        if hasattr(getattr(torch.ops, namespace), name):
            continue
        library = torch.library.Library(namespace, "FRAGMENT")
        _LIBRARIES.append(library)  # a library's operators live as long as the object
        library.define(schemas[name])
        # This key covers every device, and operators without tensor arguments, which are dispatched by no device.
        library.impl(name, kernel, "CompositeExplicitAutograd")
        if meta is not None:
            library.impl(name, meta, "Meta")
