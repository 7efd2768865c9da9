"""Forty small models in the manner of code that serves language models, half of them with operators of torch_npu.

Some cannot be converted, some have a size that data decide: what is said of them must be the same whoever is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch.nn import functional

npu = torch.ops.npu


@frozen(kw_only=True)
class Case:
    """`forward` with these inputs; `static`: inputs whose sizes are marked static under shapes=dynamic."""

    forward: Callable[..., Any]
    inputs: Mapping[str, Any]
    shapes: str = "static"
    static: tuple[str, ...] = ()
    buffers: Mapping[str, torch.Tensor] = field(factory=dict)

    def module(self) -> torch.nn.Module:
        forward, buffers = self.forward, self.buffers

        class Served(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for name, tensor in buffers.items():
                    self.register_buffer(name, tensor.clone())

        Served.forward = forward if buffers else staticmethod(forward)  # type: ignore[method-assign]
        return Served().eval()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def whole(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X, W, GAMMA = half(4, 64), half(64, 64), half(64)
Q, K = half(2, 4, 1, 16), half(2, 2, 8, 16)
PAGES, TABLE = half(6, 8, 32), torch.arange(6, dtype=torch.int32).view(2, 3)
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
COS, SIN = half(1, 4, 1, 16), half(1, 4, 1, 16)
GROUPED = {"group_list_type": 1, "group_type": 0, "split_item": 2}


# With operators of torch_npu.


def norm_and_swiglu(x, gamma, w):
    return npu.npu_swiglu(npu.npu_rms_norm(x, gamma, 1e-6)[0] @ w)


def residual_norm(x, residual, gamma):
    normed, _, total = npu.npu_add_rms_norm(x, residual, gamma, 1e-6)
    return normed, total


def rotary(x, cos, sin):
    return npu.npu_rotary_mul(x, cos, sin)


def rotary_of_pairs(x, cos, sin):
    return npu.npu_interleave_rope(x, cos, sin)


def decode_by_lengths(q, k, lengths):
    return npu.npu_fused_infer_attention_score(
        q, k, k, actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2, input_layout="BNSD"
    )[0]


def decode_in_pages(q, cache, table, lengths):
    return npu.npu_fused_infer_attention_score(
        q, cache, cache, block_table=table, block_size=8, actual_seq_lengths_kv=lengths, num_heads=4,
        num_key_value_heads=2, input_layout="BNSD",
    )[0]  # fmt: skip


def prompts_in_one_row(q, cache, table, mask, ends, lengths):
    return npu.npu_fused_infer_attention_score(
        q, cache, cache, block_table=table, block_size=8, atten_mask=mask, sparse_mode=3, actual_seq_lengths=ends,
        actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2, input_layout="TND",
    )[0]  # fmt: skip


def latent_attention(q, cache, q_rope, rope_cache, table, lengths):
    return npu.npu_fused_infer_attention_score_v2(
        q, cache, cache, query_rope=q_rope, key_rope=rope_cache, block_table=table, block_size=8,
        actual_seq_kvlen=lengths, num_query_heads=4, num_key_value_heads=1, input_layout="BNSD_NBSD",
    )[0]  # fmt: skip


def one_token_attention(q, k, lengths):
    return npu.npu_incre_flash_attention(
        q, k, k, actual_seq_lengths=lengths, num_heads=4, num_key_value_heads=2, input_layout="BNSD"
    )


def write_pages(self, key, slots):
    npu.npu_scatter_pa_kv_cache(key, key + 1, self.keys, self.values, slots, cache_mode="Norm")
    return self.keys.flatten(0, 1)[0] + key


def write_rows(self, rows, where):
    npu.npu_scatter_nd_update_(self.cache, where, rows)
    return self.cache.sum(0)


def write_tokens(self, token, where):
    npu.scatter_update_(self.cache, where, token, -2)
    return self.cache + 1


def latent_row(kv, gamma, cos, sin, slots, rope_cache, cache):
    return npu.npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, slots, rope_cache, cache, cache_mode="PA")[:2]


def gate(x, w):
    weights, chosen, _ = npu.npu_moe_gating_top_k_softmax(x @ w, None, 2)
    return weights / weights.sum(-1, keepdim=True), chosen


def there_and_back(x, rows, chosen, weights):
    sent, where, _ = npu.npu_moe_init_routing(x, rows, chosen, 4)
    return npu.npu_moe_finalize_routing(sent * 2, x, None, None, weights, where, None, 0)


def sent_in_int8(x, chosen):
    sent, where, counts, scales = npu.npu_moe_init_routing_v2(
        x, chosen, expert_num=4, expert_tokens_num_type=1, expert_tokens_num_flag=True, active_expert_range=[0, 4],
        quant_mode=1,
    )  # fmt: skip
    return sent, where, counts, scales


def experts_in_groups(x, weight, counts):
    inner = npu.npu_swiglu(npu.npu_grouped_matmul([x], [weight], group_list=counts, **GROUPED)[0])
    return inner * 2


def experts_brought_back(rows, where, weights):
    return npu.npu_moe_token_unpermute(rows, where, weights) + 1


def linear_in_int8(x, w, scale):
    rows, scales = npu.npu_dynamic_quant(x)
    return npu.npu_quant_matmul(rows, w, scale, pertoken_scale=scales, output_dtype=5)


def norm_into_int8(x, residual, gamma):
    found = npu.npu_add_rms_norm_dynamic_quant(x, residual, gamma)
    return found[0], found[2], found[3]


def weights_in_int8(x, w, scale):
    return npu.npu_weight_quant_batchmatmul(x, w, scale)


def likeliest(logits, p, k):
    return torch.softmax(npu.npu_top_k_top_p(logits, p, k), -1)


def product_between_transposes(x, w):
    return npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2], perm_y=[1, 0, 2])


def gelu(x, w):
    return npu.npu_gelu(x @ w) + npu.npu_fast_gelu(x)


def group_norm(x, weight, bias):
    return npu.npu_group_norm_silu(x, weight, bias, 2)[0]


def mish(x):
    return npu.npu_mish(x * 2)


def cast_of_format(x, w):
    return x @ npu.npu_format_cast(w, 29)


# Of torch alone.


def attention_of_a_prompt(q, k):
    return functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def written_out_attention(q, k, mask):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1) @ k


def grown_cache(cache, token):
    return torch.cat([cache, token], 2) * 2


def write_by_index(self, token, where):
    self.cache[where] = token
    return self.cache.sum(0)


def write_by_scatter(self, token, where):
    return self.cache.scatter_(0, where, token) * 2


def greedy(x, w):
    return (x @ w).argmax(-1)


def sorted_top_p(logits, p):
    ordered, where = torch.sort(logits, -1, descending=True)
    kept = torch.softmax(ordered, -1).cumsum(-1) < p
    return torch.where(kept, ordered, -1e4).gather(-1, where)


def penalised(logits, seen):
    score = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(score < 0, score * 1.2, score / 1.2))


def tokens_of_an_expert(x, chosen):
    return x[chosen == 1] * 2


def first_tokens(x, count):
    return x[: int(count.item())] * 2


def state_space_step(dt, x):
    return functional.softplus(dt) * x


def soft_cap(logits):
    return torch.tanh(logits / 30) * 30


def embedded(weight, tokens):
    return functional.embedding(tokens, weight) * 8


def counted(chosen):
    return torch.bincount(chosen, minlength=4)


def checked_for_nan(x):
    return torch.isnan(x).any() | (x > 6e4).any()


def layer_norm(x, weight, bias):
    return functional.gelu(functional.layer_norm(x, (64,), weight, bias), approximate="tanh")


CASES: Mapping[str, Case] = {
    "norm_and_swiglu": Case(forward=norm_and_swiglu, inputs={"x": X, "gamma": GAMMA, "w": W}),
    "residual_norm": Case(forward=residual_norm, inputs={"x": X, "residual": X + 1, "gamma": GAMMA}, shapes="dynamic"),
    "rotary": Case(forward=rotary, inputs={"x": half(1, 4, 2, 16), "cos": COS, "sin": SIN}),
    "rotary_of_pairs": Case(
        forward=rotary_of_pairs, inputs={"x": half(4, 2, 1, 64), "cos": half(4, 1, 1, 64), "sin": half(4, 1, 1, 64)}
    ),
    "decode_by_lengths": Case(
        forward=decode_by_lengths, inputs={"q": Q, "k": K, "lengths": [5, 6]}, shapes="dynamic", static=("q", "k")
    ),
    "decode_by_constants": Case(forward=decode_by_lengths, inputs={"q": Q, "k": K, "lengths": [5, 6]}),
    "decode_in_pages": Case(
        forward=decode_in_pages,
        inputs={"q": Q, "cache": PAGES, "table": TABLE, "lengths": [15, 9]},
        shapes="dynamic",
        static=("q", "cache", "table"),
    ),
    "prompts_in_one_row": Case(
        forward=prompts_in_one_row,
        inputs={"q": half(5, 4, 16), "cache": PAGES, "table": TABLE, "mask": MASK, "ends": [2, 5], "lengths": [15, 9]},
        shapes="dynamic",
        static=("q", "cache", "table", "mask"),
    ),
    "prompts_of_any_size": Case(
        forward=prompts_in_one_row,
        inputs={"q": half(5, 4, 16), "cache": PAGES, "table": TABLE, "mask": MASK, "ends": [2, 5], "lengths": [15, 9]},
        shapes="dynamic",
    ),
    "latent_attention": Case(
        forward=latent_attention,
        inputs={
            "q": half(2, 4, 1, 32),
            "cache": half(6, 1, 8, 32),
            "q_rope": half(2, 4, 1, 16),
            "rope_cache": half(6, 1, 8, 16),
            "table": TABLE,
            "lengths": [15, 9],
        },
    ),
    "one_token_attention": Case(
        forward=one_token_attention, inputs={"q": Q, "k": K, "lengths": [5, 6]}, shapes="dynamic", static=("q", "k")
    ),
    "write_pages": Case(
        forward=write_pages,
        inputs={"key": half(3, 2, 16), "slots": torch.tensor([3, 9, 0], dtype=torch.int32)},
        buffers={"keys": half(2, 8, 2, 16), "values": half(2, 8, 2, 16)},
    ),
    "write_rows": Case(
        forward=write_rows,
        inputs={"rows": half(2, 16), "where": torch.tensor([[1], [3]])},
        buffers={"cache": half(8, 16)},
    ),
    "write_tokens": Case(
        forward=write_tokens,
        inputs={"token": half(2, 2, 1, 16), "where": torch.tensor([1, 3])},
        buffers={"cache": half(2, 2, 8, 16)},
    ),
    "latent_row": Case(
        forward=latent_row,
        inputs={
            "kv": half(3, 1, 1, 96),
            "gamma": half(64),
            "cos": half(3, 1, 1, 32),
            "sin": half(3, 1, 1, 32),
            "slots": torch.tensor([3, 9, 0]),
            "rope_cache": half(2, 8, 1, 32),
            "cache": half(2, 8, 1, 64),
        },
    ),
    "gate": Case(forward=gate, inputs={"x": X, "w": half(64, 8)}),
    "there_and_back": Case(
        forward=there_and_back,
        inputs={
            "x": X,
            "rows": torch.arange(8, dtype=torch.int32).view(2, 4).t().contiguous(),
            "chosen": whole(4, 2, dtype=torch.int32),
            "weights": half(4, 2),
        },
    ),
    "sent_in_int8": Case(forward=sent_in_int8, inputs={"x": X, "chosen": whole(4, 2, dtype=torch.int32)}),
    "experts_in_groups": Case(
        forward=experts_in_groups, inputs={"x": X, "weight": half(2, 64, 32), "counts": torch.tensor([1, 3])}
    ),
    "experts_brought_back": Case(
        forward=experts_brought_back,
        inputs={"rows": half(8, 16), "where": torch.arange(8, dtype=torch.int32), "weights": half(4, 2)},
    ),
    "linear_in_int8": Case(
        forward=linear_in_int8, inputs={"x": X, "w": whole(64, 32), "scale": torch.rand(32)}, shapes="dynamic"
    ),
    "norm_into_int8": Case(forward=norm_into_int8, inputs={"x": X, "residual": X + 1, "gamma": GAMMA}),
    "weights_in_int8": Case(forward=weights_in_int8, inputs={"x": X, "w": whole(64, 32), "scale": half(32)}),
    "likeliest": Case(
        forward=likeliest,
        inputs={"logits": half(2, 32), "p": half(2).abs(), "k": torch.tensor([3, 5], dtype=torch.int32)},
    ),
    "product_between_transposes": Case(
        forward=product_between_transposes, inputs={"x": half(4, 2, 16), "w": half(2, 16, 32)}
    ),
    "gelu": Case(forward=gelu, inputs={"x": X, "w": W}, shapes="dynamic"),
    "group_norm": Case(forward=group_norm, inputs={"x": half(2, 4, 8), "weight": half(4), "bias": half(4)}),
    "mish": Case(forward=mish, inputs={"x": X}),
    "cast_of_format": Case(forward=cast_of_format, inputs={"x": X, "w": W}),
    "attention_of_a_prompt": Case(
        forward=attention_of_a_prompt, inputs={"q": half(2, 4, 8, 16), "k": half(2, 4, 8, 16)}
    ),
    "written_out_attention": Case(
        forward=written_out_attention,
        inputs={"q": half(2, 4, 8, 16), "k": half(2, 4, 8, 16), "mask": half(8, 8)},
        shapes="dynamic",
    ),
    "grown_cache": Case(forward=grown_cache, inputs={"cache": K, "token": half(2, 2, 1, 16)}, shapes="dynamic"),
    "write_by_index": Case(
        forward=write_by_index,
        inputs={"token": half(2, 16), "where": torch.tensor([1, 3])},
        buffers={"cache": half(8, 16)},
    ),
    "write_by_scatter": Case(
        forward=write_by_scatter,
        inputs={"token": half(2, 16), "where": torch.ones(2, 16, dtype=torch.int64)},
        buffers={"cache": half(8, 16)},
    ),
    "greedy": Case(forward=greedy, inputs={"x": X, "w": W}, shapes="dynamic"),
    "sorted_top_p": Case(forward=sorted_top_p, inputs={"logits": half(2, 32), "p": half(2, 1)}),
    "penalised": Case(forward=penalised, inputs={"logits": half(2, 32), "seen": whole(2, 3, dtype=torch.int64)}),
    "tokens_of_an_expert": Case(forward=tokens_of_an_expert, inputs={"x": X, "chosen": whole(4)}),
    "first_tokens": Case(forward=first_tokens, inputs={"x": X, "count": torch.tensor(2)}),
    "state_space_step": Case(forward=state_space_step, inputs={"dt": X, "x": X + 1}),
    "soft_cap": Case(forward=soft_cap, inputs={"logits": X}, shapes="dynamic"),
    "embedded": Case(forward=embedded, inputs={"weight": W, "tokens": whole(2, 3, dtype=torch.int64)}),
    "counted": Case(forward=counted, inputs={"chosen": whole(8, dtype=torch.int64)}),
    "checked_for_nan": Case(forward=checked_for_nan, inputs={"x": X}),
    "layer_norm": Case(forward=layer_norm, inputs={"x": X, "weight": GAMMA, "bias": GAMMA}, shapes="dynamic"),
}
