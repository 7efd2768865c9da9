"""Attention with its lengths given in every way that a model can: the factories of `fa_lengths.py`.

`fia_numbers` is npu_fused_infer_attention_score with a list of ints that the caller gives; `ifa_tolist` is
npu_incre_flash_attention with the values of a tensor. One decode step: batch 2, 8 heads of 64, a cache of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

OPS = ("fia", "ifa")
BATCH, HEADS, WIDTH, CACHE = 2, 8, 64, 128
LENGTHS = (64, 65)


class Attention(nn.Module):
    """Calls the operator and scales what it gives."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.lengths = list(LENGTHS)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lens: Sequence[Any]) -> torch.Tensor:
        if self.op == "fia":
            return torch.ops.npu.npu_fused_infer_attention_score(
                query,
                key,
                value,
                actual_seq_lengths_kv=lens,
                num_heads=HEADS,
                num_key_value_heads=HEADS,
                scale=WIDTH**-0.5,
                input_layout="BNSD",
            )[0]
        return torch.ops.npu.npu_incre_flash_attention(
            query,
            key,
            value,
            actual_seq_lengths=lens,
            num_heads=HEADS,
            num_key_value_heads=HEADS,
            scale_value=WIDTH**-0.5,
            input_layout="BNSD",
        )


class Numbers(Attention):
    def forward(self, query: Any, key: Any, value: Any, lens: list[int]) -> torch.Tensor:
        return self.attend(query, key, value, lens) * 2


class Constants(Attention):
    def forward(self, query: Any, key: Any, value: Any) -> torch.Tensor:
        return self.attend(query, key, value, self.lengths) * 2


class Mixed(Attention):
    def forward(self, query: Any, key: Any, value: Any, lens: list[int]) -> torch.Tensor:
        return self.attend(query, key, value, [lens[0], LENGTHS[1]]) * 2


class Computed(Attention):
    def forward(self, query: Any, key: Any, value: Any, lens: list[int]) -> torch.Tensor:
        return self.attend(query, key, value, [one + 1 for one in lens]) * 2


class ToList(Attention):
    def forward(self, query: Any, key: Any, value: Any, lens: torch.Tensor) -> torch.Tensor:
        return self.attend(query, key, value, lens.tolist()) * 2


class SymInt(Attention):
    def forward(self, query: Any, key: Any, value: Any) -> torch.Tensor:
        return self.attend(query, key, value, [key.shape[2]] * BATCH) * 2


class Tensor(Attention):
    """torchair.ops.npu_fused_infer_attention_score takes lengths as a tensor; no such function is there for IFA."""

    def forward(self, query: Any, key: Any, value: Any, lens: torch.Tensor) -> torch.Tensor:
        if self.op == "ifa":
            return self.attend(query, key, value, lens) * 2  # type: ignore[arg-type]
        import torchair  # pyright: ignore[reportMissingImports]

        return (
            torchair.ops.npu_fused_infer_attention_score(
                query,
                key,
                value,
                actual_seq_lengths_kv=lens,
                num_heads=HEADS,
                num_key_value_heads=HEADS,
                scale=WIDTH**-0.5,
                input_layout="BNSD",
            )[0]
            * 2
        )


KINDS: dict[str, tuple[type[Attention], Any]] = {
    "numbers": (Numbers, list),
    "constants": (Constants, None),
    "mixed": (Mixed, list),
    "computed": (Computed, list),
    "tensor": (Tensor, torch.tensor),
    "tolist": (ToList, torch.tensor),
    "symint": (SymInt, None),
    "gears": (Numbers, list),
}
"""{how the lengths are given: (module, what makes the argument of LENGTHS; None: there is none)}."""


def _factory(op: str, kind: str) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        module, given = KINDS[kind]
        random = torch.Generator().manual_seed(0)
        sizes = {"query": 1, "key": CACHE, "value": CACHE}
        inputs: dict[str, Any] = {
            name: torch.randn(BATCH, HEADS, tokens, WIDTH, generator=random) for name, tokens in sizes.items()
        }
        return module(op), inputs if given is None else {**inputs, "lens": given(LENGTHS)}

    return make


globals().update({f"{op}_{kind}": _factory(op, kind) for op in OPS for kind in KINDS})
