"""What the attention operators take and refuse at each edge, in which words, and what their defaults are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npucompose import ops
from npucompose.ops import attention
from npucompose.ops.attention import FIA, IFA, KERNELS
from npucompose.ops.definitions import UnsupportedArgument

ops.define()
fia, ifa = torch.ops.npu.npu_fused_infer_attention_score, torch.ops.npu.npu_incre_flash_attention
META = torch.device("meta")


def bnsd(batch: int = 1, heads: int = 2, kv_heads: int = 2, rows: int = 2, columns: int = 4, depth: int = 8) -> Any:
    g = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(batch, n, s, depth, generator=g)
        for n, s in ((heads, rows), (kv_heads, columns), (kv_heads, columns))
    )  # fmt: skip


def bsh(rows: int = 2, columns: int = 4, hidden: int = 16, kv_hidden: int = 16, batch: int = 1) -> Any:
    return torch.ones(batch, rows, hidden), *(2 * (torch.ones(batch, columns, kv_hidden),))


HIDES = torch.tensor([[False, True, False, True], [True, False, False, False]])
COMMON: dict[str, Any] = {"num_heads": 2, "input_layout": "BNSD"}


@pytest.mark.parametrize("precise", [0, 1, 2, 3])
@pytest.mark.parametrize("sparse", [0, 1])
def test_every_documented_way_of_computing_gives_the_same(precise: int, sparse: int) -> None:
    q, k, v = bnsd()
    wanted = fia(q, k, v, **COMMON, atten_mask=HIDES)[0]
    got = fia(q, k, v, **COMMON, atten_mask=HIDES, inner_precise=precise, sparse_mode=sparse)[0]
    assert torch.equal(got, wanted)
    fake = fia(*(t.to(META) for t in (q, k, v)), **COMMON, inner_precise=precise, sparse_mode=sparse)[0]
    assert fake.shape == wanted.shape


@pytest.mark.parametrize(
    "bounds",
    [
        {"pre_tokens": 2, "next_tokens": 4},
        {"pre_tokens": 0, "next_tokens": 0, "sparse_mode": 1},
    ],
)
def test_a_band_that_covers_all_tokens_is_none(bounds: dict[str, int]) -> None:
    q, k, v = bnsd()
    assert torch.equal(*(fia(q, k, v, **COMMON, atten_mask=HIDES, **more)[0] for more in (bounds, {})))


def test_rows_behind_heads_in_the_result_are_for_more_than_one_query() -> None:
    named = {**COMMON, "input_layout": "BNSD_BSND"}
    assert fia(*bnsd(rows=2), **named)[0].shape == (1, 2, 2, 8)
    refused(FIA, bnsd(rows=1), named, "input_layout", "is BNSD_BSND for one query. It needs Q_S > 1; use BNSD.")


def test_bands_mean_nothing_without_a_mask_nor_for_one_query() -> None:
    q, k, v = bnsd()
    assert torch.equal(*(fia(q, k, v, **COMMON, **more)[0] for more in ({"pre_tokens": 0, "next_tokens": 0}, {})))
    one, mask = q[:, :, :1], HIDES[:1]
    wanted = fia(one, k, v, **COMMON, atten_mask=mask)[0]
    for more in ({"pre_tokens": 0}, {"next_tokens": 0}, {"sparse_mode": 1}, {"sparse_mode": 2}, {"sparse_mode": 3}):
        assert torch.equal(fia(one, k, v, **COMMON, atten_mask=mask, **more)[0], wanted)
    assert torch.equal(fia(one, k, v, **COMMON, sparse_mode=1)[0], fia(one, k, v, **COMMON)[0])


def test_what_is_not_said_is_one_head_in_bsh_and_no_scale() -> None:
    q, k, v = bnsd(heads=1, kv_heads=1, rows=1)
    wanted = torch.softmax(q @ k.transpose(2, 3), -1) @ v
    flat = [t[:, 0] for t in (q, k, v)]
    torch.testing.assert_close(fia(*flat)[0], wanted[:, 0])
    torch.testing.assert_close(ifa(*flat), wanted[:, 0])
    assert [tuple(t.shape) for t in fia(*(t.to(META) for t in flat))] == [(1, 1, 8), (0,)]
    assert ifa(*(t.to(META) for t in flat)).shape == (1, 1, 8)


@pytest.mark.parametrize(("layout", "rows"), [("BSH", 2), ("BSND", 2), ("BNSD", 2), ("BNSD_BSND", 2), ("BSH", 1)])
def test_the_result_has_the_depth_of_the_values(layout: str, rows: int) -> None:
    q, k, v = bnsd(batch=3, heads=4, kv_heads=2, rows=rows)
    v = torch.cat([v, v, v], -1)[..., :12]
    wanted, lse = fia(q, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD", softmax_lse_flag=True)
    into, out_of = (layout.split("_") * 2)[:2]

    def to(t: torch.Tensor, into: str) -> torch.Tensor:
        t = t if into == "BNSD" else t.transpose(1, 2).contiguous()
        return t.flatten(2) if into == "BSH" else t

    given = [to(t, into) for t in (q, k, v)]
    named: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout}
    got = fia(*given, **named, softmax_lse_flag=True)
    torch.testing.assert_close(got[0], to(wanted, out_of))
    fake = fia(*(t.to(META) for t in given), **named, softmax_lse_flag=True)
    assert [(t.shape, t.stride(), t.dtype) for t in fake] == [(t.shape, t.stride(), t.dtype) for t in got]
    assert got[1].shape == lse.shape
    if rows == 1:
        one = ifa(*given, **named)
        fake_one = ifa(*(t.to(META) for t in given), **named)
        assert (one.shape, one.stride()) == (fake_one.shape, fake_one.stride()) == (got[0].shape, got[0].stride())


def test_a_lone_head_may_serve_sixty_four() -> None:
    q, k, v = bsh(hidden=128, kv_hidden=2)
    assert fia(q, k, v, num_heads=64, num_key_value_heads=1)[0].shape == (1, 2, 128)
    refused(FIA, bsh(hidden=130, kv_hidden=2), {"num_heads": 65, "num_key_value_heads": 1}, "num_key_value_heads")


def refused(op: str, tensors: Any, named: dict[str, Any], argument: str, words: str = "") -> None:
    call = fia if op == FIA else ifa
    with pytest.raises(UnsupportedArgument, match=f"{op}: '{argument}' {re.escape(words)}"):
        call(*tensors, **named)


HEADS = "must be a multiple of it, at most 64 times as much (0: the same)."
SHAPES: list[tuple[Any, dict[str, Any], str, str]] = [
    (bsh(), {"num_heads": 0}, "num_key_value_heads", f"is 0. num_heads=0 {HEADS}"),
    (bsh(), {"num_heads": -1, "num_key_value_heads": 1}, "num_key_value_heads", f"is 1. num_heads=-1 {HEADS}"),
    (bsh(), {"num_heads": 2, "num_key_value_heads": -1}, "num_key_value_heads", f"is -1. num_heads=2 {HEADS}"),
    (bsh(), {"num_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads", f"is 3. num_heads=4 {HEADS}"),
    (bsh(), {"num_heads": 3}, "query", "has 16 for H, a multiple of the heads (3). Its shape is BSH."),
    (bsh(hidden=0), {}, "query", "has 0 for H, a multiple of the heads (1). Its shape is BSH."),
    (bsh(hidden=12, kv_hidden=16), {"num_heads": 3}, "key", "has 16 for H, a multiple of the heads (3)"),
    ((*bsh()[:2], torch.ones(1, 4, 15)), {"num_heads": 2}, "value", "has 15 for H, a multiple of the heads (2)"),
    (bsh(hidden=16, kv_hidden=8), {"num_heads": 2}, "key", "has another head size: query (1, 2, 16), key (1, 4, 8). D"),
    (bnsd(), {"num_heads": 4, "input_layout": "BNSD"}, "query", "has 2 for N, the number of heads (4). Its shape is"),
    (bnsd(), {"num_heads": 2, "num_key_value_heads": 1, "input_layout": "BNSD"}, "key", "has 2 for N, the number of"),
    (bnsd(), {"num_heads": 4, "input_layout": "BSND"}, "query", "has 2 for N, the number of heads (4). Its shape is"),
    (bnsd(), {"num_heads": 2}, "query", "has 4 dimensions. BSH has 3."),
    ((bnsd()[0], *bsh()[1:]), COMMON, "key", "has 3 dimensions. BNSD has 4."),
    ((*bnsd()[:2], bnsd()[2][0]), COMMON, "value", "has 3 dimensions. BNSD has 4."),
    ([t.double() for t in bnsd()], COMMON, "query", "is torch.float64. All three are of one of torch.float32, torch"),
    ((bnsd()[0], bnsd()[1].half(), bnsd()[2]), COMMON, "key", "is torch.float16. All three are of one of"),
    ((bnsd(batch=2)[0], *bnsd()[1:]), COMMON, "key", "does not fit: query (2, 2, 2, 8), key (1, 2, 4, 8), value (1, 2"),
    ((*bnsd()[:2], bnsd(batch=2)[2]), COMMON, "key", "does not fit: query (1, 2, 2, 8), key (1, 2, 4, 8), value (2, 2"),
    ((*bnsd()[:2], bnsd(columns=5)[2]), COMMON, "key", "does not fit"),
    ((*bsh()[:2], bsh(columns=5)[2]), {}, "key", "does not fit"),
    ([t.transpose(1, 2) for t in (*bnsd()[:2], bnsd(columns=5)[2])], COMMON | {"input_layout": "BSND"}, "key", "does"),
    ((bnsd(depth=4)[0], *bnsd()[1:]), COMMON, "key", "has another head size: query (1, 2, 2, 4), key (1, 2, 4, 8). D"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "named", "argument", "words"), SHAPES)
def test_a_shape_that_does_not_fit_is_told_with_what_would(
    tensors: Any, named: dict[str, Any], argument: str, words: str
) -> None:
    refused(FIA, tensors, named, argument, words)
    refused(IFA, tensors, named, argument, words)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


MANY = "Possible: (Q_S, KV_S), (B|1, Q_S, KV_S), (B|1, 1, Q_S, KV_S); B = 2, Q_S = 2, KV_S = 4, S may be padded."
SINGLE = "Possible: (B, KV_S), (B, 1, KV_S), (B, 1, 1, KV_S); B = 2, Q_S = 1, KV_S = 4, S may be padded."
MASKS: list[tuple[int, torch.Tensor, str]] = [
    (2, ones(2, 3), MANY), (2, ones(1, 4), MANY), (2, ones(4), MANY), (2, ones(3, 2, 4), MANY),
    (2, ones(2, 2, 2, 4), MANY), (2, ones(3, 1, 2, 4), MANY), (2, ones(2, 1, 1, 4), MANY), (2, ones(2, 1, 2, 3), MANY),
    (2, ones(1, 1, 1, 2, 4), MANY), (1, ones(3, 4), SINGLE), (1, ones(2, 3), SINGLE), (1, ones(2, 2, 1, 4), SINGLE),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "mask", "words"), MASKS)
def test_a_mask_of_another_form_is_told_which_there_are(rows: int, mask: torch.Tensor, words: str) -> None:
    tensors = bnsd(batch=2, rows=rows)
    refused(FIA, tensors, {**COMMON, "atten_mask": mask}, "atten_mask", f"has shape {tuple(mask.shape)}. {words}")
    if rows == 1:
        refused(IFA, tensors, {**COMMON, "atten_mask": mask}, "atten_mask", f"has shape {tuple(mask.shape)}. {words}")


@pytest.mark.parametrize("shape", [(1, 2, 4), (2, 2, 4), (1, 1, 2, 4), (2, 1, 3, 6), (2, 4), (3, 5)])
def test_a_mask_may_be_padded_and_common_to_all(shape: tuple[int, ...]) -> None:
    q, k, v = bnsd(batch=2)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[..., 1, 2] = True
    assert torch.equal(*(fia(q, k, v, **COMMON, atten_mask=m)[0] for m in (mask, mask[..., :2, :4].expand(
        (2, 2, 4) if len(shape) == 3 else (2, 1, 2, 4) if len(shape) == 4 else (2, 4)))))  # fmt: skip


BIAS = "Possible: (B|1, N, Q_S, KV_S) of B = 2, N = 2, Q_S = 2, KV_S = 4."


@pytest.mark.parametrize("shape", [(2, 2, 4), (3, 2, 2, 4), (2, 1, 2, 4), (2, 2, 1, 4), (2, 2, 2, 3), (1, 2, 2, 2, 4)])
def test_a_bias_of_another_form_is_refused(shape: tuple[int, ...]) -> None:
    named = {**COMMON, "pse_shift": torch.zeros(shape)}
    refused(FIA, bnsd(batch=2), named, "pse_shift", f"has shape {shape}. {BIAS}")
    half = {**COMMON, "pse_shift": torch.zeros(2, 2, 2, 4).half()}
    refused(FIA, bnsd(batch=2), half, "pse_shift", "is torch.float16. The query is torch.float32.")


def test_a_bias_is_added_in_both_operators() -> None:
    q, k, v = bnsd(batch=2, rows=1)
    bias = torch.randn(2, 2, 1, 5, generator=torch.Generator().manual_seed(2))
    got, other = fia(q, k, v, **COMMON, pse_shift=bias)[0], ifa(q, k, v, **COMMON, pse_shift=bias)
    torch.testing.assert_close(got, torch.softmax(q @ k.transpose(2, 3) + bias[..., :4], -1) @ v)
    assert torch.equal(got, other)


VALUES: list[tuple[str, dict[str, Any], str, str]] = [
    (FIA, {"atten_mask": HIDES, "pre_tokens": 1}, "pre_tokens", "is 1. Only bands that cover all tokens: at least 2."),
    (FIA, {"atten_mask": HIDES, "next_tokens": 3}, "next_tokens", "is 3. Only bands that cover all tokens: at least 4"),
    (FIA, {"atten_mask": HIDES, "next_tokens": 0, "pre_tokens": 0}, "pre_tokens", "is 0. Only bands that cover all"),
    (FIA, {"sparse_mode": 1}, "atten_mask", "is missing. sparse_mode=1 needs the whole mask."),
    (FIA, {"sparse_mode": 2}, "atten_mask", "is missing. sparse_mode=2 needs the 2048 × 2048 one."),
    (FIA, {"sparse_mode": 3, "atten_mask": ones(2047, 2048)}, "atten_mask", "has shape (2047, 2048). sparse_mode=3"),
    (FIA, {"sparse_mode": 3, "atten_mask": ones(1, 2, 2048, 2048)}, "atten_mask", "has shape (1, 2, 2048, 2048)."),
    (FIA, {"sparse_mode": 4}, "sparse_mode", "is 4. Supported: 0, 1, 2, 3."),
    (FIA, {"sparse_mode": -1}, "sparse_mode", "is -1. Supported: 0, 1, 2, 3."),
    (FIA, {"inner_precise": 4}, "inner_precise", "is 4. Possible: 0, 1, 2, 3."),
    (FIA, {"inner_precise": -1}, "inner_precise", "is -1. Possible: 0, 1, 2, 3."),
    (FIA, {"input_layout": "SBH"}, "input_layout", "is 'SBH'. Supported: BSH, BSND, BNSD, TND, NTD, NSD, BNSD_BSND,"),
    (FIA, {"antiquant_mode": 1}, "antiquant_mode", "is not supported here. Supported: query, key, value, pse_shift"),
    (FIA, {"actual_seq_lengths": [3]}, "actual_seq_lengths", "holds 3. Possible: 0 to S = 2."),
    (FIA, {"actual_seq_lengths_kv": [5]}, "actual_seq_lengths_kv", "holds 5. Possible: 0 to S = 4."),
    (FIA, {"actual_seq_lengths_kv": []}, "actual_seq_lengths_kv", "has 0 lengths. Possible: 1, or at least B = 1."),
    (IFA, {"inner_precise": 2}, "inner_precise", "is 2. Possible: 0, 1."),
    (IFA, {"inner_precise": -1}, "inner_precise", "is -1. Possible: 0, 1."),
    (IFA, {"input_layout": "BNSD_BSND"}, "input_layout", "is 'BNSD_BSND'. Supported: BSH, BSND, BNSD."),
    (IFA, {}, "query", f"has 2 tokens. It takes one; use {FIA} for more."),
]  # fmt: skip


@pytest.mark.parametrize(("op", "named", "argument", "words"), VALUES)
def test_a_value_is_refused_with_those_that_are_possible(
    op: str, named: dict[str, Any], argument: str, words: str
) -> None:
    refused(op, bnsd(), {**COMMON, **named}, argument, words)
    if argument == "input_layout":  # without which there is no shape
        refused(op, [t.to(META) for t in bnsd(rows=1)], {**COMMON, **named}, argument, words)


@pytest.mark.parametrize("precise", [0, 1])
def test_one_query_may_be_computed_in_either_precision(precise: int) -> None:
    q, k, v = bnsd(rows=1)
    assert torch.equal(ifa(q, k, v, **COMMON, inner_precise=precise), fia(q, k, v, **COMMON)[0])


@pytest.mark.parametrize(("lengths", "taken"), [([0], [0, 0]), ([4], [4, 4]), ([3, 1, 9], [3, 1]), ([4, 0], [4, 0])])
def test_lengths_are_one_for_all_or_one_for_each(lengths: list[int], taken: list[int]) -> None:
    q, k, v = bnsd(batch=2)
    got = fia(q, k, v, **COMMON, actual_seq_lengths_kv=lengths)[0]
    for batch, length in enumerate(taken):
        one = fia(*(t[batch : batch + 1] for t in (q, k, v)), **COMMON, actual_seq_lengths_kv=[length])[0]
        torch.testing.assert_close(got[batch : batch + 1], one)
    refused(FIA, bnsd(batch=3), {**COMMON, "actual_seq_lengths_kv": [1, 2]}, "actual_seq_lengths_kv", "has 2 lengths")


@pytest.mark.parametrize("shape", [(2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048)])
def test_the_compressed_mask_may_have_leading_ones(shape: tuple[int, ...]) -> None:
    q, k, v = bnsd()
    triangle = torch.ones(2, 4).triu(1).bool()
    got = fia(q, k, v, **COMMON, sparse_mode=2, atten_mask=ones(*shape))[0]
    assert torch.equal(got, fia(q, k, v, **COMMON, atten_mask=triangle)[0])


@pytest.mark.parametrize("nothing", [None, False, 0])
@pytest.mark.parametrize("op", [FIA, IFA])
def test_an_argument_without_a_kernel_may_be_given_as_nothing(op: str, nothing: Any) -> None:
    q, k, v = bnsd(rows=1)
    found = KERNELS[op](q, k, v, **COMMON, padding=nothing)
    got, wanted = (x[0] if op == FIA else x for x in (found, KERNELS[op](q, k, v, **COMMON)))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("something", [True, 1, 0.0, torch.ones(1), []])
def test_and_not_as_anything_else(something: Any) -> None:
    q, k, v = bnsd(rows=1)
    with pytest.raises(UnsupportedArgument, match="'padding' is not supported here"):
        KERNELS[FIA](q, k, v, **COMMON, padding=something)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        (None, None),
        ([3], [3, 3]),
        ([4], None),  # all that there are
        ([4, 4, 1], None),  # what is behind the last batch is of no account
        ([3, 4], [3, 4]),
        ([0, 4], [0, 4]),
        ([0], [0, 0]),
        ([3, 1, 9], [3, 1]),
    ],
)
def test_there_is_a_length_for_each_batch_or_all_tokens_count(lengths: list[int] | None, found: object) -> None:
    assert attention._lengths(FIA, "actual_seq_lengths", lengths, 2, 4) == found


def test_one_length_of_the_queries_goes_with_each_of_the_keys() -> None:
    """The corner that the mask is aligned with is another one in each batch."""
    q, k, v = bnsd(batch=2, rows=3)
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    masked = {**COMMON, "sparse_mode": 3, "atten_mask": mask}
    got = fia(q, k, v, **masked, actual_seq_lengths=[2], actual_seq_lengths_kv=[4, 3])[0]
    for batch, length in enumerate((4, 3)):
        parts = (t[batch : batch + 1] for t in (q, k, v))
        one = fia(*parts, **masked, actual_seq_lengths=[2], actual_seq_lengths_kv=[length])[0]
        torch.testing.assert_close(got[batch : batch + 1], one)


def test_the_width_of_a_result_is_the_symbol_of_the_values_where_heads_are_not_shared() -> None:
    """`s // 8 * 8` is another size than `s` to whoever compares shapes."""
    shape_env = ShapeEnv()
    width = shape_env.create_unbacked_symint()
    with FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True):
        query, value = torch.empty(1, 3, 64), torch.empty(1, 2, width)
        alike, shared = (
            attention.METAS[FIA](query, value, value, num_heads=8, num_key_value_heads=n)[0] for n in (8, 4)
        )
    assert (str(alike.shape[2]), str(shared.shape[2])) == (str(width), f"8*(({width}//4))")
