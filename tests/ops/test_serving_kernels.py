"""Reference kernels of what serving code calls around attention, beside loops in float64 by the operators' pages.

And their forms beside those of the wheel's meta functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from npucompose import ops
from npucompose.ops import caches, meta_functions, npu, quantised, routing
from npucompose.ops.attention import FIA
from npucompose.ops.attention_v2 import FIA_V2
from npucompose.ops.definitions import UnsupportedArgument
from npucompose.targets.npu_offline import wheel
from npucompose.vendor.devices import device_of
from tests.npu.needs import offline

ops.define()
ROWS, WIDTH, EXPERTS, CHOICES = 5, 8, 4, 2


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(low: int, high: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, wanted: Any) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(wanted).double(), rtol=1e-5, atol=1e-5)


# Routing.


def experts(seed: int = 0) -> torch.Tensor:
    rows = [torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(seed + n))[:CHOICES] for n in range(ROWS)]
    return torch.stack(rows).int()


def test_gating_takes_the_likeliest_and_numbers_the_rows_by_choice() -> None:
    x = values(ROWS, EXPERTS)
    weights, chosen, rows = torch.ops.npu.npu_moe_gating_top_k_softmax(x, None, CHOICES)
    for row in range(ROWS):
        odds = [math.exp(float(one)) for one in x[row]]
        best = sorted(range(EXPERTS), key=lambda at, odds=odds: -odds[at])[:CHOICES]
        assert chosen[row].tolist() == best
        close(weights[row], [odds[at] / sum(odds) for at in best])
    assert rows.tolist() == [[row + choice * ROWS for choice in range(CHOICES)] for row in range(ROWS)]


def test_rows_are_sent_to_their_experts_in_order() -> None:
    x, chosen = values(ROWS, WIDTH), experts()
    rows = torch.arange(ROWS * CHOICES, dtype=torch.int32).view(CHOICES, ROWS).t()
    sent, where, sorted_experts = torch.ops.npu.npu_moe_init_routing(x, rows, chosen, ROWS)
    wanted = sorted(
        (int(chosen[r, c]), r * CHOICES + c, r, int(rows[r, c])) for r in range(ROWS) for c in range(CHOICES)
    )
    assert sorted_experts.tolist() == [expert for expert, *_ in wanted]
    assert torch.equal(sent, torch.stack([x[row] for _, _, row, _ in wanted]))
    assert [int(where[number]) for *_, number in wanted] == list(range(ROWS * CHOICES))


@pytest.mark.parametrize("active", [(0, EXPERTS), (1, 3)])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("index", [0, 1])
def test_rows_are_sent_to_the_experts_of_this_rank(active: tuple[int, int], kind: int, index: int) -> None:
    x, chosen = values(ROWS, WIDTH), experts(3)
    sent, where, tokens, scales = torch.ops.npu.npu_moe_init_routing_v2(
        x, chosen, scale=torch.arange(ROWS) + 1.0, active_num=ROWS * CHOICES, expert_num=EXPERTS,
        expert_tokens_num_type=kind, expert_tokens_num_flag=True, active_expert_range=list(active), row_idx_type=index,
    )  # fmt: skip
    kept = sorted(
        (int(chosen[r, c]), r * CHOICES + c, r)
        for r in range(ROWS)
        for c in range(CHOICES)
        if active[0] <= chosen[r, c] < active[1]
    )
    assert torch.equal(sent[: len(kept)], torch.stack([x[row] for *_, row in kept]))
    assert not sent[len(kept) :].any()
    assert scales[: len(kept)].tolist() == [row + 1.0 for *_, row in kept]
    counts = [sum(expert == one for expert, *_ in kept) for one in range(*active)]
    assert tokens.tolist() == (counts if kind == 1 else torch.tensor(counts).cumsum(0).tolist())
    if index == 1:
        assert where[: len(kept)].tolist() == [number for _, number, _ in kept]
    else:
        places = {number: at for at, (_, number, _) in enumerate(kept)}
        assert where.tolist() == [places.get(number, -1) for number in range(ROWS * CHOICES)]


def test_rows_are_sent_as_int8() -> None:
    x, chosen = values(ROWS, WIDTH), experts()
    named: dict[str, Any] = {"active_num": -1, "expert_num": EXPERTS}
    plain = torch.ops.npu.npu_moe_init_routing_v2(x, chosen, **named)[0]
    sent, _, _, scales = torch.ops.npu.npu_moe_init_routing_v2(x, chosen, **named, quant_mode=1)
    assert sent.dtype == torch.int8
    close(scales, plain.abs().amax(-1) / 127)
    torch.testing.assert_close(sent * scales[:, None], plain, rtol=0, atol=float(scales.max()) / 2 + 1e-6)


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("more", [(), ("skip1",), ("skip1", "skip2"), ("bias", "scales"), ("skip1", "scales")])
def test_rows_come_back_as_weighted_sums(mode: int, more: tuple[str, ...]) -> None:
    rows, chosen, total = values(ROWS * CHOICES, WIDTH), experts(), ROWS * CHOICES
    where = torch.randperm(total, generator=torch.Generator().manual_seed(1)).int()
    given = {
        "skip1": values(ROWS, WIDTH, seed=1), "skip2": values(ROWS, WIDTH, seed=2),
        "bias": values(EXPERTS, WIDTH, seed=3), "scales": values(ROWS, CHOICES, seed=4),
    }  # fmt: skip
    given = {name: tensor if name in more else None for name, tensor in given.items()}
    found = torch.ops.npu.npu_moe_finalize_routing(rows, *given.values(), where, chosen, mode, CHOICES)
    for row in range(ROWS):
        wanted = torch.zeros(WIDTH, dtype=torch.float64)
        for name in ("skip1", "skip2"):
            wanted += 0 if given[name] is None else given[name][row].double()
        for choice in range(CHOICES):
            at = int(where[choice * ROWS + row if mode == 0 else row * CHOICES + choice])
            one = rows[at].double() + (0 if given["bias"] is None else given["bias"][int(chosen[row, choice])])
            wanted += one * (1 if given["scales"] is None else float(given["scales"][row, choice]))
        close(found[row], wanted)


def test_unpermuting_is_what_finalising_does_without_skips() -> None:
    rows, weights = values(ROWS * CHOICES, WIDTH), values(ROWS, CHOICES, seed=1)
    where = torch.randperm(ROWS * CHOICES, generator=torch.Generator().manual_seed(1)).int()
    found = torch.ops.npu.npu_moe_token_unpermute(rows, where, weights)
    close(found, torch.ops.npu.npu_moe_finalize_routing(rows, None, None, None, weights, where, None, 2))
    back = torch.ops.npu.npu_moe_token_unpermute(rows, where)
    assert torch.equal(back, rows[where.long()])


# Products in groups and in int8.


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_each_group_of_rows_has_a_weight_of_its_own(kind: int, bias: bool, single: bool) -> None:
    counts, x, weight = [3, 0, 2], values(6, WIDTH), values(3, WIDTH, 7, seed=1)
    biases = values(3, 7, seed=2)
    groups = torch.tensor(counts if kind == 1 else [3, 3, 5])
    found = torch.ops.npu.npu_grouped_matmul(
        [x], [weight] if single else list(weight), group_list=groups, group_list_type=kind, group_type=0, split_item=2,
        bias=[biases] if bias and single else list(biases) if bias else None,
    )[0]  # fmt: skip
    rows = torch.tensor([0, 0, 0, 2, 2])
    wanted = torch.stack([x[at].double() @ weight[one].double() for at, one in enumerate(rows)])
    close(found[:5], wanted + biases[rows] if bias else wanted)
    assert found.shape == (6, 7)
    if single and not bias:
        listed = torch.ops.npu.npu_grouped_matmul([x], [weight], group_list=[3, 3, 5], split_item=3)[0]
        assert torch.equal(listed, found)


def test_groups_in_int8_are_scaled_by_column_and_by_row() -> None:
    x, weight = whole(-128, 128, 5, WIDTH), whole(-128, 128, 2, WIDTH, 3, seed=1)
    scales, rows = values(2, 3, seed=2), values(5, seed=3)
    found = torch.ops.npu.npu_grouped_matmul(
        [x], [weight], scale=[scales], per_token_scale=[rows], group_list=torch.tensor([2, 3]), group_list_type=1,
        group_type=0, split_item=2, output_dtype=15,
    )[0]  # fmt: skip
    which = torch.tensor([0, 0, 1, 1, 1])
    wanted = torch.stack(
        [x[at].double() @ weight[one].double() * scales[one] * rows[at] for at, one in enumerate(which)]
    )
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted.to(torch.bfloat16))


def test_without_groups_every_x_has_its_weight() -> None:
    x, weight = [values(2, 3), values(4, 5)], [values(3, 6, seed=1), values(5, 7, seed=2)]
    found = torch.ops.npu.npu_grouped_matmul(x, weight, group_type=-1)
    for one, a, b in zip(found, x, weight, strict=True):
        close(one, a.double() @ b.double())


def test_a_row_is_int8_by_its_greatest_value_and_a_row_of_zeros_stays_zeros() -> None:
    x = torch.cat([values(2, 3, WIDTH), torch.zeros(2, 1, WIDTH)], 1)
    smooth = values(WIDTH, seed=1)
    for given in ({}, {"smooth_scales": smooth}):
        whole_numbers, scale = torch.ops.npu.npu_dynamic_quant(x, **given)
        wide = x.double() * (smooth.double() if given else 1)
        close(scale, wide.abs().amax(-1) / 127)
        assert (whole_numbers * scale[..., None] - wide).abs().max() <= scale.max() / 2 + 1e-5
        assert not whole_numbers[:, 3].any()


@pytest.mark.parametrize("dtype", [None, 1, 3, 5, 15])
@pytest.mark.parametrize("more", [(), ("pertoken_scale",), ("bias",), ("whole_bias", "pertoken_scale"), ("offset",)])
def test_a_product_of_int8_is_exact_until_it_is_scaled(dtype: int | None, more: tuple[str, ...]) -> None:
    x, w = whole(-128, 128, 3, 64), whole(-128, 128, 64, 5, seed=1)
    scale = values(5, seed=2).abs() / 100
    given: dict[str, torch.Tensor] = {
        "pertoken_scale": values(3, seed=3).abs(), "bias": values(5, seed=4), "offset": values(5, seed=5),
        "whole_bias": whole(-999, 999, 5, seed=6, dtype=torch.int32),
    }  # fmt: skip
    named = {name.removeprefix("whole_"): given[name] for name in more}
    found = torch.ops.npu.npu_quant_matmul(x, w, scale, **named, output_dtype=dtype)
    sums = torch.tensor([[sum(int(a) * int(b) for a, b in zip(r, c, strict=True)) for c in w.t()] for r in x]).double()
    sums = sums + given["whole_bias"] if "whole_bias" in more else sums
    wanted = sums * scale.double()
    wanted = wanted * given["pertoken_scale"].double()[:, None] if "pertoken_scale" in more else wanted
    for name in ("bias", "offset"):
        wanted = wanted + given[name].double() if name in more else wanted
    out = quantised.DTYPES[dtype or 1]
    limits = None if out.is_floating_point else torch.iinfo(out)
    wanted = wanted if limits is None else wanted.round().clamp(limits.min, limits.max)
    assert torch.equal(found, wanted.to(out))


# Caches, latents, sampling.


@pytest.mark.parametrize("mode", ["Norm", None, "PA_NZ"])
def test_each_token_is_written_at_its_slot_and_nothing_else(mode: str | None) -> None:
    key, value, slots = values(3, 2, 16), values(3, 2, 32, seed=1), torch.tensor([7, 0, 10], dtype=torch.int32)
    shapes = [(3, 4, 2, 16), (3, 4, 2, 32)] if mode != "PA_NZ" else [(3, 2, 4, 16), (3, 4, 4, 16)]
    before = [values(*shape, seed=9) for shape in shapes]
    after = [one.clone() for one in before]
    assert torch.ops.npu.npu_scatter_pa_kv_cache(key, value, *after, slots, cache_mode=mode) is None
    fresh = torch.ops.npu.npu_scatter_pa_kv_cache_functional(key, value, *before, slots, cache_mode=mode)
    for rows, cache, old, copied in zip((key, value), after, before, fresh, strict=True):
        wanted = old.clone()
        for row, slot in zip(rows, slots.tolist(), strict=True):
            page, place = divmod(slot, 4)
            if mode == "PA_NZ":
                wanted[page, :, place] = row.flatten().view(-1, 16)
            else:
                wanted[page, place] = row
        assert torch.equal(cache, wanted)
        assert torch.equal(copied, wanted)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each pair (a, b) = (x[2i], x[2i + 1]) as place i and i + D / 2 of the result."""
    half, out = x.shape[-1] // 2, torch.empty_like(x, dtype=torch.float64)
    for at in range(half):
        a, b = x[..., 2 * at].double(), x[..., 2 * at + 1].double()
        out[..., at] = a * cos[..., at] - b * sin[..., at]
        out[..., at + half] = b * cos[..., at + half] + a * sin[..., at + half]
    return out


def test_pairs_are_turned() -> None:
    x, cos, sin = values(2, 3, 1, 8), values(2, 1, 1, 8, seed=1), values(2, 1, 1, 8, seed=2)
    close(torch.ops.npu.npu_interleave_rope(x, cos, sin), turned(x, cos, sin))


@pytest.mark.parametrize("mode", ["PA", "Norm"])
def test_a_latent_row_is_normalised_turned_and_written(mode: str) -> None:
    kv, gamma, cos, sin = (
        values(2, 1, 3, 24),
        values(16, seed=1),
        values(2, 1, 3, 8, seed=2),
        values(2, 1, 3, 8, seed=3),
    )
    head = (4, 3, 1) if mode == "PA" else (2, 1, 9)
    k_cache, ckv_cache = values(*head, 8, seed=4), values(*head, 16, seed=5)
    slots = torch.tensor([11, 3, 0, 7, 8, 2]) if mode == "PA" else torch.tensor([[8, 0, 3], [1, 2, 7]])
    found = torch.ops.npu.npu_kv_rmsnorm_rope_cache(
        kv, gamma, cos, sin, slots, k_cache, ckv_cache, epsilon=1e-3, cache_mode=mode, is_output_kv=True
    )
    wide = kv[..., :16].double()
    latent = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * gamma
    rows = turned(kv[..., 16:], cos, sin), latent
    for row, given, cache, written in zip(rows, (k_cache, ckv_cache), found[:2], found[2:], strict=True):
        close(written, row)
        wanted = given.double()
        for batch in range(2):
            for token in range(3):
                if mode == "PA":
                    page, place = divmod(int(slots[batch * 3 + token]), 3)
                    wanted[page, place, 0] = row[batch, 0, token]
                else:
                    wanted[batch, 0, int(slots[batch, token])] = row[batch, 0, token]
        close(cache, wanted)


def test_a_product_between_transposes() -> None:
    x, w = values(5, 3, 4), values(3, 4, 6, seed=1)
    found = torch.ops.npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2], perm_y=[1, 0, 2])
    close(found, torch.einsum("mbk,bkn->mbn", x.double(), w.double()))
    other = torch.ops.npu.npu_transpose_batchmatmul(x.transpose(0, 1), w.transpose(1, 2), perm_x2=[0, 2, 1])
    assert torch.equal(other, found)


@pytest.mark.parametrize("given", [("k",), ("p",), ("k", "p")])
def test_all_but_the_likeliest_are_hidden(given: tuple[str, ...]) -> None:
    logits = values(4, 32)
    k, p = torch.tensor([1, 5, 32, 7], dtype=torch.int32), torch.tensor([0.3, 0.9, 0.0, 1.0])
    found = torch.ops.npu.npu_top_k_top_p(logits, p if "p" in given else None, k if "k" in given else None)
    for row in range(4):
        left = sorted(range(32), key=lambda at, row=row: float(logits[row, at]))
        left = left[32 - int(k[row]) :] if "k" in given else left
        odds = [math.exp(float(logits[row, at])) for at in left]
        cut = 1 - float(p[row])
        kept = {at for n, at in enumerate(left) if "p" not in given or sum(odds[: n + 1]) / sum(odds) > cut} | {
            left[-1]
        }
        assert {at for at in range(32) if found[row, at] > -math.inf} == kept
        assert all(found[row, at] == logits[row, at] for at in kept)


def test_the_second_form_of_attention_is_the_first_with_other_names() -> None:
    q, k = values(2, 4, 1, 16), values(2, 2, 7, 16, seed=1)
    lengths: dict[str, Any] = {"input_layout": "BNSD", "num_key_value_heads": 2}
    first = torch.ops.npu.npu_fused_infer_attention_score(
        q, k, k, num_heads=4, scale=0.3, actual_seq_lengths_kv=[3, 7], softmax_lse_flag=True, **lengths
    )
    second = torch.ops.npu.npu_fused_infer_attention_score_v2(
        q, k, k, num_query_heads=4, softmax_scale=0.3, actual_seq_kvlen=[3, 7], return_softmax_lse=True, **lengths
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with pytest.raises(UnsupportedArgument, match=rf"{FIA_V2}: 'learnable_sink' is not supported here"):
        torch.ops.npu.npu_fused_infer_attention_score_v2(
            q, k, k, num_query_heads=4, learnable_sink=torch.ones(4), **lengths
        )
    with pytest.raises(UnsupportedArgument, match=rf"{FIA_V2}: 'actual_seq_kvlen'"):
        torch.ops.npu.npu_fused_infer_attention_score_v2(
            q, k, k, num_query_heads=4, actual_seq_kvlen=[3, 99], **lengths
        )


# What is refused, and forms.

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "finished": (
        lambda: torch.ops.npu.npu_moe_gating_top_k_softmax(values(2, 3), torch.ones(2, dtype=torch.bool), 1),
        r"'finished' is not supported here\. Supported: x, k",
    ),
    "drop_pad": (
        lambda: torch.ops.npu.npu_moe_init_routing_v2(values(ROWS, 2), experts(), expert_num=4, drop_pad_mode=1),
        "'drop_pad_mode' is not supported here",
    ),
    "quant_mode": (
        lambda: torch.ops.npu.npu_moe_init_routing_v2(values(ROWS, 2), experts(), expert_num=4, quant_mode=2),
        "'quant_mode' is 2",
    ),
    "groups": (
        lambda: torch.ops.npu.npu_grouped_matmul(
            [values(4, 3)], [values(2, 3, 5)], group_list=torch.tensor([1, 2, 4]), group_type=0, split_item=2
        ),
        r"'group_list' makes 3 groups\. There are 2 weights",
    ),
    "group_type": (
        lambda: torch.ops.npu.npu_grouped_matmul(
            [values(4, 3)], [values(2, 3, 5)], group_list=torch.tensor([1, 2]), group_type=2, split_item=2
        ),
        r"'group_type' is 2\. Supported: -1, 0",
    ),
    "float": (
        lambda: torch.ops.npu.npu_quant_matmul(values(2, 3), values(3, 4), torch.ones(4)),
        r"'x1' is torch\.float32\. Supported: int8",
    ),
    "output": (
        lambda: torch.ops.npu.npu_quant_matmul(whole(0, 2, 2, 3), whole(0, 2, 3, 4), torch.ones(4), output_dtype=99),
        r"'output_dtype' is 99\. Supported: 1 \(torch\.int8\), 3",
    ),
    "cache_mode": (
        lambda: torch.ops.npu.npu_scatter_pa_kv_cache(
            *[values(1, 1, 16)] * 2, *[values(1, 1, 1, 16)] * 2, torch.tensor([0]), cache_mode="NZ"
        ),
        r"'cache_mode' is 'NZ'\. Possible: Norm, PA_NZ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kernel_has_no_formula_for_is_refused_by_its_name(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(UnsupportedArgument, match=words):
        call()


def calls() -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Of every operator of the three files, several where the form depends on the arguments."""
    half = {"dtype": torch.float16, "device": "meta"}
    x, chosen = torch.empty(5, 8, **half), torch.empty(5, 2, dtype=torch.int32, device="meta")
    yield "npu_moe_gating_top_k_softmax", [x], {"k": 3}
    for active in (3, 99):
        yield "npu_moe_init_routing", [x, chosen, chosen, active], {}
    for flag in (False, True):
        for mode in (-1, 1):
            named = {"expert_num": 4, "expert_tokens_num_flag": flag, "quant_mode": mode}
            yield routing.INIT_V2, [x, chosen], named
            yield routing.INIT_V2, [x, chosen], {**named, "active_num": 3, "active_expert_range": [1, 3]}
    rows, where, weights = torch.empty(10, 8, **half), chosen.flatten(), torch.empty(5, 2, **half)
    for mode, given in ((0, weights), (2, weights), (2, None)):
        yield routing.FINALIZE, [rows, None, None, None, given, where, None, mode, 2], {}
    for given in (weights, None):
        yield "npu_moe_token_unpermute", [rows, where, given], {}
    yield "npu_dynamic_quant", [torch.empty(2, 5, 8, **half)], {}
    small = {"dtype": torch.int8, "device": "meta"}
    a, b, scale = torch.empty(5, 8, **small), torch.empty(8, 16, **small), torch.empty(16, device="meta")
    of_rows = torch.empty(5, device="meta")
    for dtype in (5, 15):
        yield quantised.QUANT, [a, b, scale], {"output_dtype": dtype, "pertoken_scale": of_rows}
    groups = torch.empty(2, dtype=torch.int64, device="meta")
    three = torch.empty(2, 8, 6, **half)
    for split in (2, 3):
        named = {"group_list": groups, "group_type": 0, "split_item": split}
        yield quantised.GROUPED, [[x], [three]], named
        yield quantised.GROUPED, [[x], list(three)], named
        yield f"{quantised.GROUPED}.List", [[x], [three]], {"group_list": [2, 5], "split_item": split}
    yield quantised.GROUPED, [[x, rows], [three[0], three[1]]], {"group_type": -1}
    named = {"group_list": groups, "group_type": 0, "split_item": 2, "output_dtype": 15}
    yield quantised.GROUPED, [[a], [torch.empty(2, 8, 6, **small)]], named
    cache, slots = torch.empty(3, 4, 2, 8, **half), torch.empty(5, dtype=torch.int64, device="meta")
    key = torch.empty(5, 2, 8, **half)
    for name in (caches.SCATTER, f"{caches.SCATTER}_functional"):
        yield name, [key, key, cache, cache, slots], {"cache_mode": "Norm"}
    angles = torch.empty(5, 1, 1, 8, **half)
    kv, latent = torch.empty(5, 1, 1, 24, **half), torch.empty(3, 4, 1, 16, **half)
    turned_cache = torch.empty(3, 4, 1, 8, **half)
    yield caches.LATENT, [kv, latent[0, 0, 0], angles, angles, slots, turned_cache, latent], {"cache_mode": "PA"}
    yield "npu_interleave_rope", [torch.empty(5, 3, 1, 8, **half), angles, angles], {}
    yield caches.PRODUCT, [torch.empty(5, 2, 8, **half), three], {"perm_x1": [1, 0, 2], "perm_y": [1, 0, 2]}
    yield "npu_top_k_top_p", [x, x[:, 0], where[:5]], {}
    named = {"num_query_heads": 2, "input_layout": "BNSD", "return_softmax_lse": True}
    yield FIA_V2, [torch.empty(2, 2, 1, 16, **half), *[torch.empty(2, 2, 7, 16, **half)] * 2], named


@offline
def test_forms_are_those_of_the_wheel(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = meta_functions.load(wheel.locate() / "torch_npu", device_of(None).number)
    compared: set[str] = set()
    for name, given, named in calls():
        found = [torch.utils._pytree.tree_leaves(each[name](*given, **named)) for each in (npu.METAS, theirs)]
        told = [[(t.shape, t.dtype, t.stride()) for t in one if t is not None] for one in found]
        assert told[0] == told[1], (name, named)
        compared.add(name)
    assert compared == {*routing.KERNELS, *quantised.KERNELS, *caches.KERNELS, FIA_V2}
    assert compared.isdisjoint({FIA})
