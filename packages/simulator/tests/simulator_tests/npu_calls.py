"""A call of every operator of torch_npu that has a meta function, with arguments that the meta function takes.

Most take one tensor of some shape for every tensor, and the same number for every number: `tried` finds which. The rest
are written out in `WRITTEN`, tensors as `half[2, 8]`. Seven meta functions of 2.13.0 fail whatever they are given:
`FAILING`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from npucompose.ops import npu
from npucompose.ops.catalogue import Catalogue

FAILING = {
    "npu_geglu_grad": "RuntimeError: Unable to cast (tensor(..., device='meta'",
    "npu_quant_fusion_attention": "NameError: name 'out_dtype' is not defined",
    "npu_scatter_list_": "RuntimeError: Expected PythonKernelHolder for npu::npu_scatter_list_ to return None",
    "obfuscation_calculate": "TypeError: obfuscation_calculate_meta() ",
    "npu_fusion_attention_grad_v2": "TypeError: empty_like(): argument 'input' (position 1) must be Tensor, not list",
    "npu_quant_fusion_attention_backward": "NameError: name 'out_dtype' is not defined",
    "npu_quant_matmul_reduce_sum": "NameError: name 'x' is not defined",
}
"""{operator: what its meta function raises, on a device as here}."""
SHAPES = ((8, 16), (2, 8, 16), (2, 4, 8, 16), (16,), (16, 16), (4, 4, 4, 4))
DTYPES = (torch.float16, torch.float32, torch.int8, torch.int32, torch.int64)
GMM_ALL2ALL = {
    "gmm_x": "half[8, 16]", "gmm_weight": "half[2, 16, 32]", "gmm_x_scale": "float[1]", "gmm_weight_scale": "float[1]",
    "hcom": "group", "ep_world_size": 2, "send_counts": [4, 4, 0, 0], "recv_counts": [4, 4, 0, 0], "gmm_y_dtype": 5,
}  # fmt: skip
KV_CACHE = {
    "kv": "half[2, 1, 1, 192]", "gamma": "half[128]", "cos": "half[2, 1, 1, 64]", "sin": "half[2, 1, 1, 64]",
    "index": "long[2, 1]", "k_cache": "half[2, 1, 8, 64]", "ckv_cache": "half[2, 1, 8, 128]",
}  # fmt: skip
QKV_CACHE = {
    "qkv": "half[8, 192]", "q_gamma": "half[32]", "k_gamma": "half[32]", "cos": "half[8, 32]", "sin": "half[8, 32]",
    "index": "long[8]", "q_out": "half[8, 64]", "k_cache": "half[4, 4, 8, 16]", "v_cache": "half[4, 4, 8, 16]",
    "qkv_size": [2, 4, 6, 32], "head_nums": [2, 2, 2],
}  # fmt: skip
ROPE_CACHE = {
    "cos": "half[2, 1, 1, 16]", "sin": "half[2, 1, 1, 16]", "k_cache": "char[2, 8, 1, 16]",
    "v_cache": "char[2, 8, 1, 16]", "indices": "int[2]", "scale_k": "float[16]", "scale_v": "float[16]",
    "size_splits": [32, 16, 16],
}  # fmt: skip
UNPERMUTED = {"permuted_tokens": "half[16, 8]", "sorted_indices": "int[16]", "probs": "half[8, 2]"}
QUERY, CACHE = "half[2, 1, 8, 128]", "half[2, 16, 1, 128]"
DELTA_RULE = {
    "query": "bfloat16[4, 2, 16]", "key": "bfloat16[4, 2, 16]", "value": "bfloat16[4, 2, 16]",
    "state": "bfloat16[4, 2, 16, 16]", "beta": "bfloat16[4, 2]", "scale": 0.25, "actual_seq_lengths": "int[4]",
    "ssm_state_indices": "int[4]",
}  # fmt: skip
WRITTEN: Mapping[str, Mapping[str, Any]] = {
    "_npu_matmul_abft_verify": {
        "a": "half[8, 16]", "b": "half[16, 8]", "c": "float[8, 8]", "checksum_weight": "half[8]",
    },
    "_npu_moe_token_unpermute": UNPERMUTED,
    "npu_alltoallv_quant_gmm": GMM_ALL2ALL,
    "npu_apply_adam_w.out": {
        **dict.fromkeys(("beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon"), 0.5),
        "grad": "float[8]", "max_grad_norm": None, "amsgrad": False, "maximize": False, "out": ["float[8]"] * 3,
    },
    "npu_block_sparse_attention": {
        **dict.fromkeys(("query", "key", "value"), "half[256, 2, 64]"), "block_sparse_mask": "char[1, 2, 2, 2]",
        "block_shape": [128, 128],
    },
    "npu_chunk_gated_delta_rule": {
        "query": "half[16, 2, 32]", "key": "half[16, 2, 32]", "value": "half[16, 2, 32]",
        "initial_state": "float[1, 2, 32, 32]",
    },
    "npu_deformable_conv2d": {
        "input": "half[1, 4, 8, 8]", "weight": "half[8, 4, 3, 3]", "offset": "half[1, 27, 8, 8]", "bias": None,
        "kernel_size": [3, 3], "stride": [1, 1, 1, 1], "padding": [1, 1, 1, 1],
    },
    "npu_dequant_rope_quant_kvcache": {"x": "int[2, 1, 64]", **ROPE_CACHE},
    "npu_ffn_worker_batching": {"schedule_context": "char[64]", "expert_num": 4, "max_out_shape": [1, 4, 2, 16]},
    "npu_grouped_dynamic_mx_quant": {"x": "half[64, 32]", "group_index": "int[2]"},
    "npu_grouped_matmul": {
        "x": ["half[8, 16]"], "weight": ["half[2, 16, 32]"], "group_list": "long[2]", "split_item": 2, "group_type": 0,
        "group_list_type": 1,
    },
    "npu_grouped_matmul.List": {
        "x": ["half[8, 16]"], "weight": ["half[16, 32]", "half[16, 32]"], "group_list": [4, 8], "split_item": 2,
        "group_type": 0,
    },
    "npu_grouped_matmul_finalize_routing": {
        "x": "char[8, 16]", "w": "char[2, 16, 32]", "group_list": "long[2]", "scale": "float[2, 32]",
        "pertoken_scale": "float[8]", "logit": "float[8]", "row_index": "long[8]", "output_bs": 4,
    },
    "npu_kv_quant_sparse_flash_attention": {
        "query": "half[2, 1, 8, 576]", "key": "char[2, 16, 1, 656]", "value": "char[2, 16, 1, 656]",
        "sparse_indices": "int[2, 1, 1, 4]", "scale_value": 0.1, "key_quant_mode": 2, "value_quant_mode": 2,
    },
    "npu_kv_rmsnorm_rope_cache": KV_CACHE,
    "npu_kv_rmsnorm_rope_cache_v2": KV_CACHE,
    "npu_kv_rmsnorm_rope_cache_v2_functional": KV_CACHE,
    "npu_matmul_compress_dequant": {
        "x1": "char[8, 16]", "x2": "char[256]", "compress_index": "char[8]", "bias": "int[1, 32]",
        "scale": "uint64[1, 32]",
    },
    "npu_mhc_pre": {"x": "half[2, 4, 4, 16]", "phi": "float[24, 64]", "alpha": "float[3]", "bias": "float[24]"},
    "npu_moe_distribute_dispatch_v2": {
        "x": "half[8, 16]", "expert_ids": "int[8, 2]", "group_ep": "group", "ep_world_size": 2, "ep_rank_id": 0,
        "moe_expert_num": 2,
    },
    "npu_moe_finalize_routing": {
        **dict.fromkeys(("skip1", "skip2", "bias", "scales", "export_for_source_row")),
        "expanded_permuted_rows": "half[16, 16]", "expanded_src_to_dst_row": "int[16]",
    },
    "npu_moe_init_routing_v2": {
        "x": "half[8, 16]", "expert_idx": "int[8, 2]", "expert_num": 4, "active_expert_range": [0, 4],
    },
    "npu_moe_token_permute_grad": {
        "tokens": "half[8, 16]", "grad_permuted_tokens": "half[16, 16]", "indices": "long[8, 2]",
        "sorted_indices": "int[16]",
    },
    "npu_moe_token_permute_grad_v2": {
        "grad_permuted_tokens": "half[16, 16]", "sorted_indices": "int[16]", "tokens_size_0": 8,
        "tokens_dtype": torch.float16, "num_topK": 2,
    },
    "npu_moe_token_unpermute": UNPERMUTED,
    "npu_moe_token_unpermute_grad": {"grad_unpermuted_tokens": "half[8, 8]", **UNPERMUTED},
    "npu_moe_token_unpermute_grad_v2": {
        "grad_unpermuted_tokens": "half[8, 8]", "permuted_tokens_size_0": 16, "permuted_tokens_dtype": torch.float16,
        **UNPERMUTED,
    },
    "npu_qkv_rms_norm_rope_cache": QKV_CACHE,
    "npu_qkv_rms_norm_rope_cache_functional": QKV_CACHE,
    "npu_quant_conv2d": {
        "input": "char[1, 4, 8, 8]", "weight": "char[8, 4, 3, 3]", "scale": "long[8]", "strides": [2, 2],
        "pads": [1, 1], "dilations": [2, 2], "output_dtype": 5,
    },
    "npu_quant_gmm_alltoallv": GMM_ALL2ALL,
    "npu_quant_grouped_matmul_dequant": {
        "x": "half[8, 16]", "quantized_weight": "char[2, 32, 16]", "weight_scale": "float[2, 32]",
        "group_list": "long[2]",
    },
    "npu_quant_matmul": {
        "x1": "char[8, 16]", "x2": "char[16, 32]", "scale": "float[32]", "pertoken_scale": "float[8]",
        "output_dtype": 5,
    },
    "npu_quant_matmul_dequant": {"x": "half[8, 16]", "quantized_weight": "char[32, 16]", "weight_scale": "float[32]"},
    "npu_recurrent_gated_delta_rule": DELTA_RULE,
    "npu_recurrent_gated_delta_rule_functional": DELTA_RULE,
    "npu_ring_attention_update": {
        "prev_attn_out": "half[16, 2, 64]", "prev_softmax_max": "float[2, 1, 16, 8]",
        "prev_softmax_sum": "float[2, 1, 16, 8]", "cur_attn_out": "half[16, 2, 64]",
        "cur_softmax_max": "float[2, 1, 16, 8]", "cur_softmax_sum": "float[2, 1, 16, 8]",
    },
    "npu_rms_norm_quant_v2": {
        "x": "half[8, 16]", "gamma": "half[16]", "scale": "float[16]", "offset": "char[16]", "beta": "half[16]",
    },
    "npu_rope_quant_kvcache": {"x": "half[2, 1, 64]", **ROPE_CACHE},
    "npu_scatter_list": {
        "self": ["half[4, 8, 16]"] * 2, "indices": "long[2]", "updates": "half[2, 4, 1, 16]", "mask": "char[2]",
    },
    "npu_sparse_flash_attention": {
        "query": QUERY, "key": CACHE, "value": CACHE, "sparse_indices": "int[2, 1, 1, 4]", "scale_value": 0.1,
    },
    "npu_sparse_flash_attention_grad": {
        "query": QUERY, "key": CACHE, "value": CACHE, "sparse_indices": "int[2, 1, 1, 4]", "d_out": QUERY, "out": QUERY,
        "softmax_max": "float[2, 1, 1, 8]", "softmax_sum": "float[2, 1, 1, 8]", "scale_value": 0.1,
        "sparse_block_size": 1,
    },
    "npu_top_k_top_p": {"logits": "half[4, 32]", "p": "half[4]", "k": "int[4]"},
    "npu_transpose": {"self": "half[8, 16]", "perm": [1, 0]},
    "npu_transpose_quant_batchmatmul": {
        "x1": "float8_e4m3fn[8, 2, 16]", "x2": "float8_e4m3fn[2, 16, 32]", "dtype": 5, "x1_scale": "float[8]",
        "x2_scale": "float[32]", "perm_x1": [1, 0, 2], "perm_x2": [0, 1, 2], "perm_y": [1, 0, 2],
    },
}  # fmt: skip
_TENSOR = re.compile(r"(\w+)\[([\d, ]+)\]")
_TYPES = {"half": torch.float16, "char": torch.int8}


def tensor(words: str) -> torch.Tensor:
    """`half[2, 8]`, full of zeros."""
    found = _TENSOR.fullmatch(words)
    assert found is not None, words
    kind = _TYPES.get(found[1]) or getattr(torch, found[1])
    sizes = [int(size) for size in found[2].split(",")]
    return torch.zeros(sizes, dtype=torch.float32).to(kind)


def call(name: str) -> dict[str, Any]:
    """{argument: value} of a call that the operator's meta function takes, tensors full of zeros."""
    if name in WRITTEN:
        return {argument: _made(value) for argument, value in WRITTEN[name].items()}
    return next(given for given in tried(name) if taken(name, given))


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    return tensor(value) if isinstance(value, str) and _TENSOR.fullmatch(value) else value


def tried(name: str) -> Iterator[dict[str, Any]]:
    """Calls with one shape, type and number each; arguments that have a default are left out."""
    for shape, dtype, number in itertools.product(SHAPES, DTYPES, (1, 2)):
        one = torch.zeros(shape, dtype=dtype)
        kinds: dict[str, Any] = {
            "Tensor": one, "List[Tensor]": [one], "int": number, "SymInt": number, "float": 0.5, "bool": False,
            "number": 1, "str": "BSND", "Device": torch.device("cpu"), "List[bool]": [True] * 3,
            "List[int]": [number] * 2, "List[SymInt]": [number] * 2,
        }  # fmt: skip
        needed = [a for a in npu.overload(name)._schema.arguments if not a.has_default_value()]
        yield {a.name: None if isinstance(a.type, torch.OptionalType) else kinds[str(a.type)] for a in needed}


def taken(name: str, given: Mapping[str, Any]) -> bool:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            npu.overload(name)(**tree_map_only(torch.Tensor, mode.from_tensor, dict(given)))
    except Exception:  # noqa: BLE001  a meta function may raise anything
        return False
    return True


def operators_with_shapes(known: Catalogue, shaped: Mapping[str, Any]) -> list[str]:
    """Overloads that the wheel has a meta function for, in the list's order."""
    return [name for name in known.schemas if name in shaped]
