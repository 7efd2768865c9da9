"""Operators that TorchAir has for GE's graph alone: their values, where the stand-in runs the FX graph in its place.

torchair.ops.npu_fused_infer_attention_score takes lengths as tensors and raises when it is called: on a device only GE
computes it. Its values are those of the operator of torch_npu with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.ops import attention

LENGTHS = ("actual_seq_lengths", "actual_seq_lengths_kv")
SAME = {"air::npu_fused_infer_attention_score": attention.FIA}
"""{TorchAir's operator: torch_npu's}."""


class GraphOnly(TorchDispatchMode):
    """While a graph runs in GE's place its operators have values."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = SAME.get(func._schema.name)
        if name is None:
            return func(*args, **(kwargs or {}))
        lengths = {slot: value.tolist() for slot, value in (kwargs or {}).items() if _is_a_list_here(slot, value)}
        return attention.KERNELS[name](*args, **{**(kwargs or {}), **lengths})


def _is_a_list_here(slot: str, value: Any) -> bool:
    return slot in LENGTHS and isinstance(value, torch.Tensor)
