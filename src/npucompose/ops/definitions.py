"""Defines operators that nobody else has defined, each with its kernel and its meta function; how a kernel refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from npucompose.errors import NpuComposeError

_LIBRARIES: list[torch.library.Library] = []


class UnsupportedArgument(NpuComposeError, ValueError):
    """An argument that the reference kernel does not take, or that the operator's own document forbids."""

    def __init__(self, op: str, argument: str, given: str, possible: str) -> None:
        self.parts = (op, argument, given, possible)
        super().__init__(f"torch.ops.npu.{op}: '{argument}' {given}. {possible}")

    def __reduce__(self) -> tuple[type[UnsupportedArgument], tuple[str, str, str, str]]:
        return type(self), self.parts


def define_missing(
    namespace: str, schemas: Mapping[str, str], kernels: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]
) -> None:
    """`torch.ops.<namespace>.<name>` for each name of `kernels`, {name: (kernel, meta)}; what is there stays."""
    for name, (kernel, meta) in kernels.items():
        if hasattr(getattr(torch.ops, namespace), name):
            continue
        library = torch.library.Library(namespace, "FRAGMENT")
        _LIBRARIES.append(library)  # a library's operators live as long as the object
        library.define(schemas[name])
        library.impl(name, kernel, "CompositeExplicitAutograd")
        library.impl(name, meta, "Meta")
