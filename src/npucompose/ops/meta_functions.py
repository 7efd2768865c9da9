"""The meta functions of a torch_npu wheel in a process that has no torch_npu: the shapes that a device would say.

The wheel's two files are run with substitutes for the little that they import of torch_npu; nothing of it stays in
sys.modules, so that a library that asks for an NPU finds none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from npucompose.ops.catalogue import dtype_numbers, meta_files
from npucompose.vendor.versions import CANN, cann_is_at_least

MetaFunctions = Mapping[str, Callable[..., Any]]
"""{overload of torch.ops.npu: what gives the form of its results}."""


def load(root: Path, soc: int) -> MetaFunctions:
    """Of the wheel whose folder torch_npu is `root`, for the system on chip of that number."""
    found: dict[str, Callable[..., Any]] = {}

    class Collected(torch.library.Library):
        """Keeps what is registered, and registers nothing."""

        def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
            self.ns = ns

        def impl(self, op_name: str, fn: Callable[..., Any], *_: Any, **__: Any) -> None:
            if self.ns == "npu":
                found[op_name] = fn

    def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda function: found.setdefault(name.removeprefix("npu::"), function)

    with (
        _stand_ins(root, soc),
        patch.object(torch.library, "Library", Collected),
        patch.object(torch.library, "register_fake", fake),
    ):
        for file in meta_files(root):
            spec = importlib.util.spec_from_file_location(f"npucompose.ops.of_the_wheel.{file.stem}", file)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return found


@contextmanager
def _stand_ins(root: Path, soc: int) -> Iterator[None]:
    """What the files import of torch_npu, which they go on to use when they are called."""

    answers: dict[str, dict[str, Any]] = {
        "torch_npu": dtype_numbers(root),
        "torch_npu.utils": {},
        # A device puts the time, the process and the rank behind each message.
        "torch_npu.utils._error_code": {"ErrCode": _Codes(), "ops_error": lambda code: ""},
        "torch_npu.npu": {},
        "torch_npu.npu.utils": {
            "get_cann_version": lambda module="CANN": CANN,
            "_is_gte_cann_version": cann_is_at_least,
        },
        "torch_npu.npu._backends": {"get_soc_version": lambda: soc},
    }
    made: dict[str, ModuleType] = {}
    for name, attributes in answers.items():
        made[name] = ModuleType(name)
        made[name].__dict__.update(attributes)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, made[name])
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Codes:
    """Any of the codes that a message may have."""

    def __getattr__(self, name: str) -> str:
        return name
