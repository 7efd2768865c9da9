"""Operators that only GE's graph has: their values where the simulated runtime runs the FX graph in its place."""

from __future__ import annotations

import torch

from npucompose import ops
from npucompose.targets.npu_offline.simulator.ge_session import SAME, GraphOnly


def test_lengths_as_a_tensor_give_what_the_same_numbers_give() -> None:
    ops.define()
    library = torch.library.Library("air", "FRAGMENT")
    name = next(iter(SAME)).partition("::")[2]
    if not hasattr(torch.ops.air, name):
        library.define(
            f"{name}(Tensor query, Tensor key, Tensor value, *, Tensor? actual_seq_lengths_kv=None, int num_heads=1, "
            "float scale=1.0, str input_layout='BSH', int num_key_value_heads=0) -> (Tensor, Tensor)"
        )
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 1, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    options = {"num_heads": 2, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": 0.5}
    wanted = torch.ops.npu.npu_fused_infer_attention_score(query, key, value, actual_seq_lengths_kv=[3, 5], **options)[
        0
    ]
    with GraphOnly():
        given = getattr(torch.ops.air, name)(query, key, value, actual_seq_lengths_kv=torch.tensor([3, 5]), **options)[
            0
        ]
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert torch.equal(given, wanted)
