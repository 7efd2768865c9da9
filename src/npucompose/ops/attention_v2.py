"""npu_fused_infer_attention_score_v2 as the reference kernel of its first form, whose arguments it names anew.

Ascend/op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score_v2.md.
"""

from __future__ import annotations

from typing import Any

import torch

from npucompose.ops import attention
from npucompose.ops.definitions import UnsupportedArgument

FIA_V2 = f"{attention.FIA}_v2"
NAMES = {
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "num_query_heads": "num_heads",
    "softmax_scale": "scale",
    "return_softmax_lse": "softmax_lse_flag",
    "quant_scale_out": "quant_scale2",
}
"""{its name here: in the first form}."""


def _as_first(act: Any) -> Any:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **named: Any) -> Any:
        try:
            return act(query, key, value, **{NAMES.get(name, name): given for name, given in named.items()})
        except UnsupportedArgument as error:
            words = str(error).replace(f"{attention.FIA}:", f"{FIA_V2}:")
            for name, first in NAMES.items():
                words = words.replace(f"'{first}'", f"'{name}'")
            raise UnsupportedArgument(words) from None

    return call


KERNELS: dict[str, Any] = {FIA_V2: _as_first(attention.KERNELS[attention.FIA])}
METAS: dict[str, Any] = {FIA_V2: _as_first(attention.METAS[attention.FIA])}
