"""Defines operators that nobody else has defined, each with its kernel and its meta function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_LIBRARIES: list[torch.library.Library] = []


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
