"""npu_fused_infer_attention_score and npu_incre_flash_attention against attention written out in float64 loops."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

import npucompose.ops
from npucompose.errors import NpuComposeError
from npucompose.ops.definitions import UnsupportedArgument
from tests.searches import examples

# The kernel computes in float32 and rounds once; a half-precision result is off by at most one rounding.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# BNSD_BSND is for more than one query, npu_incre_flash_attention for one.
LAYOUTS = [*itertools.product(("BSH", "BSND", "BNSD"), (1, 3)), ("BNSD_BSND", 3)]
CALLS = [("fia", *call) for call in LAYOUTS] + [("ifa", layout, 1) for layout in ("BSH", "BSND", "BNSD")]


@pytest.fixture(autouse=True, scope="module")
def _defined() -> None:
    npucompose.ops.define()


def fia(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.npu.npu_fused_infer_attention_score(*args, **kwargs)


def ifa(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ops.npu.npu_incre_flash_attention(*args, **kwargs)


def written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    q_len: list[int],
    kv_len: list[int],
    hides: Any = lambda b, i, j: False,
    pse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, N, S, D] in float64, one score after the other; the lse beside it."""
    batch, heads, rows, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(batch, heads, rows, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, rows, 1), -math.inf, dtype=torch.float64)
    for b, h in itertools.product(range(batch), range(heads)):
        for i in range(q_len[b]):
            seen = [j for j in range(kv_len[b]) if not hides(b, i, j)]
            if not seen:
                continue
            scores = (k[b, h // group, seen].double() @ q[b, h, i].double()) * scale
            if pse is not None:
                scores = scores + pse[b if pse.shape[0] > 1 else 0, h, i, seen].double()
            weights = (scores - scores.max()).exp()
            out[b, h, i] = (weights / weights.sum()) @ v[b, h // group, seen].double()
            lse[b, h, i, 0] = scores.max() + weights.sum().log()
    return out, lse


def to_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2).contiguous()
    return x if layout == "BSND" else x.flatten(2)


def drawn(batch: int, heads: int, kv_heads: int, rows: int, columns: int, dtype: torch.dtype, depth: int = 8) -> Any:
    g = torch.Generator().manual_seed(7)
    shapes = ((heads, rows), (kv_heads, columns), (kv_heads, columns))
    return tuple(torch.randn(batch, n, s, depth, generator=g).to(dtype) for n, s in shapes)


def same(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("layout", "rows"), LAYOUTS)
def test_fia_equals_float64_attention(layout: str, kv_heads: int, dtype: torch.dtype, rows: int) -> None:
    q, k, v = drawn(2, 4, kv_heads, rows, 5, dtype)
    expected, lse = written_out(q, k, v, 0.3, [rows, rows], [5, 3])
    into, out_of = (layout.split("_") * 2)[:2]
    got, got_lse = fia(
        *(to_layout(t, into) for t in (q, k, v)),
        num_heads=4,
        num_key_value_heads=0 if kv_heads == 4 else kv_heads,
        scale=0.3,
        input_layout=layout,
        actual_seq_lengths_kv=[5, 3],
        softmax_lse_flag=True,
    )
    assert got.dtype == dtype
    same(got, to_layout(expected, out_of), dtype)
    same(got_lse, lse, torch.float32 if dtype == torch.float32 else dtype)


@settings(max_examples=examples(40), deadline=None)
@given(
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    rows=st.integers(1, 4),
    columns=st.integers(1, 6),
    data=st.data(),
)
def test_any_mask_bias_and_lengths_equal_float64_attention(
    batch: int, kv_heads: int, group: int, rows: int, columns: int, data: st.DataObject
) -> None:
    q, k, v = drawn(batch, kv_heads * group, kv_heads, rows, columns, torch.float32)
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    mask_batch, pse_batch = data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, batch]))
    padding = data.draw(st.integers(0, 2))  # S of a mask may be rounded up
    mask = torch.rand(mask_batch, 1, rows, columns + padding, generator=g) < 0.5
    pse = torch.randn(pse_batch, kv_heads * group, rows, columns + padding, generator=g)
    q_len = [data.draw(st.integers(0, rows)) if rows > 1 else 1 for _ in range(batch)]
    kv_len = [data.draw(st.integers(0, columns)) for _ in range(batch)]
    expected, lse = written_out(
        q, k, v, 0.5, q_len, kv_len, lambda b, i, j: bool(mask[b if mask_batch > 1 else 0, 0, i, j]), pse
    )
    got, got_lse = fia(
        q, k, v,
        num_heads=kv_heads * group, num_key_value_heads=kv_heads, scale=0.5, input_layout="BNSD",
        atten_mask=mask, pse_shift=pse, actual_seq_lengths=q_len, actual_seq_lengths_kv=kv_len, softmax_lse_flag=True,
    )  # fmt: skip
    same(got, expected, torch.float32)
    same(got_lse, lse, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_every_documented_form_of_the_mask_means_the_same(dims: int, rows: int, dtype: torch.dtype) -> None:
    q, k, v = drawn(2, 2, 2, rows, 4, torch.float32)
    full = torch.rand(2, 1, rows, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    full[..., 0] = False
    two = full[:, 0, 0] if rows == 1 else full[0, 0]
    mask = {2: two, 3: full[:, 0], 4: full}[dims]
    batched = not (dims == 2 and rows > 1)
    expected, _ = written_out(q, k, v, 1.0, [rows] * 2, [4] * 2, lambda b, i, j: bool(full[b * batched, 0, i, j]))
    got, _ = fia(q, k, v, num_heads=2, input_layout="BNSD", atten_mask=mask.to(dtype))
    same(got, expected, torch.float32)


@pytest.mark.parametrize(("mode", "rows", "columns"), [(2, 3, 5), (3, 3, 5), (3, 5, 3), (2, 5, 3)])
def test_the_causal_modes_hide_what_their_diagonal_says(mode: int, rows: int, columns: int) -> None:
    q, k, v = drawn(2, 2, 1, rows, columns, torch.float32)
    q_len, kv_len = [rows, rows - 1], [columns - 1, columns]
    triangle = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

    def hides(b: int, i: int, j: int) -> bool:
        return j > i + (kv_len[b] - q_len[b] if mode == 3 else 0)

    expected, _ = written_out(q, k, v, 0.5, q_len, kv_len, hides)
    got, _ = fia(
        q, k, v,
        num_heads=2, num_key_value_heads=1, scale=0.5, input_layout="BNSD", sparse_mode=mode, atten_mask=triangle,
        actual_seq_lengths=q_len, actual_seq_lengths_kv=kv_len,
    )  # fmt: skip
    same(got, expected, torch.float32)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_ifa_equals_float64_attention(layout: str, dtype: torch.dtype) -> None:
    q, k, v = drawn(3, 4, 2, 1, 6, dtype)
    mask = torch.rand(3, 6, generator=torch.Generator().manual_seed(3)) < 0.3
    mask[:, 0] = False
    expected, _ = written_out(q, k, v, 0.3, [1] * 3, [6, 1, 4], lambda b, i, j: bool(mask[b, j]))
    got = ifa(
        *(to_layout(t, layout) for t in (q, k, v)),
        num_heads=4, num_key_value_heads=2, scale_value=0.3, input_layout=layout, atten_mask=mask,
        actual_seq_lengths=[6, 1, 4],
    )  # fmt: skip
    assert got.dtype == dtype
    same(got, to_layout(expected, layout), dtype)


def test_a_row_that_sees_nothing_is_zero_and_its_lse_is_minus_infinity() -> None:
    q, k, v = drawn(1, 1, 1, 3, 4, torch.float32)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1] = True
    out, lse = fia(q, k, v, input_layout="BNSD", atten_mask=mask, softmax_lse_flag=True)
    assert out[0, 0, 1].tolist() == [0.0] * 8
    assert lse[0, 0, 1].item() == -math.inf
    assert torch.isfinite(lse[0, 0, [0, 2]]).all()
    out, lse = fia(q, k, v, input_layout="BNSD", actual_seq_lengths_kv=[0], softmax_lse_flag=True)
    assert (out.count_nonzero().item(), lse.unique().tolist()) == (0, [-math.inf])


def test_what_lies_behind_the_length_is_never_read() -> None:
    q, k, v = drawn(2, 2, 2, 1, 6, torch.float32)
    k[1, :, 2:], v[1, :, 2:], k[0, :, 4:], v[0, :, 4:] = (math.nan,) * 4
    out, _ = fia(q, k, v, num_heads=2, input_layout="BNSD", actual_seq_lengths_kv=[4, 2])
    assert torch.isfinite(out).all()


def test_one_length_is_for_every_batch_and_surplus_lengths_are_ignored() -> None:
    q, k, v = drawn(2, 1, 1, 1, 4, torch.float32)
    both, one, more = (fia(q, k, v, input_layout="BNSD", actual_seq_lengths_kv=n)[0] for n in ([3, 3], [3], [3, 3, 1]))
    assert torch.equal(both, one)
    assert torch.equal(both, more)


def test_lengths_of_the_query_mean_nothing_for_one_token() -> None:
    """Public scripts give those of the whole sequence: Ascend/pytorch test/npu/test_aclgraph_update.py, 22."""
    q, k, v = drawn(2, 1, 1, 1, 4, torch.float32)
    plain, given = (fia(q, k, v, input_layout="BNSD", actual_seq_lengths=n)[0] for n in (None, [100, 0]))
    assert torch.equal(plain, given)


def test_without_the_flag_the_lse_is_empty() -> None:
    q, k, v = drawn(1, 1, 1, 1, 4, torch.float16)
    assert (fia(q, k, v, input_layout="BNSD")[1].shape, fia(q, k, v, input_layout="BNSD")[1].dtype) == (
        (0,),
        torch.float32,
    )


BLOCKS = torch.zeros(1, 1, dtype=torch.int32)
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("block_size", {"block_table": BLOCKS, "actual_seq_lengths_kv": [1]}),
        ("block_table", {"block_table": BLOCKS.long(), "block_size": 4}),
        ("block_table", {"block_table": BLOCKS[0], "block_size": 4}),
        ("actual_seq_lengths_kv", {"block_table": BLOCKS, "block_size": 4}),
        ("actual_seq_lengths_kv", {"block_table": BLOCKS, "block_size": 4, "actual_seq_lengths_kv": [5]}),
        ("quant_scale2", {"quant_scale2": ONE}),
        ("dequant_scale1", {"dequant_scale1": ONE}),
        ("antiquant_scale", {"antiquant_scale": ONE}),
        ("key_antiquant_mode", {"key_antiquant_mode": 1}),
        ("key_shared_prefix", {"key_shared_prefix": ONE}),
        ("actual_shared_prefix_len", {"actual_shared_prefix_len": [1]}),
        ("query_rope", {"query_rope": ONE}),
        ("kv_padding_size", {"kv_padding_size": ONE}),
        ("query_rope", {"key_rope": ONE}),
        ("input_layout", {"input_layout": "SBH"}),
        ("sparse_mode", {"sparse_mode": 4}),
        ("inner_precise", {"inner_precise": 4}),
        ("atten_mask", {"sparse_mode": 3, "atten_mask": torch.zeros(2, 4)}),
        ("atten_mask", {"sparse_mode": 1}),
        ("atten_mask", {"atten_mask": torch.zeros(2, 3, dtype=torch.bool)}),
        ("atten_mask", {"atten_mask": torch.zeros(2, 4)}),
        ("pre_tokens", {"atten_mask": torch.zeros(2, 4, dtype=torch.bool), "pre_tokens": 1}),
        ("next_tokens", {"atten_mask": torch.zeros(2, 4, dtype=torch.bool), "next_tokens": 0}),
        ("pse_shift", {"pse_shift": torch.zeros(1, 1, 2, 4)}),
        ("num_key_value_heads", {"num_key_value_heads": 3}),
        ("query", {"num_heads": 4}),
        ("actual_seq_lengths_kv", {"actual_seq_lengths_kv": [5]}),
        ("actual_seq_lengths", {"actual_seq_lengths": [-1]}),
        ("actual_seq_lengths_kv", {"actual_seq_lengths_kv": []}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(named: str, changes: dict[str, Any]) -> None:
    q, k, v = drawn(1, 2, 2, 2, 4, torch.float32)
    with pytest.raises(UnsupportedArgument, match=f"npu_fused_infer_attention_score: '{named}' ") as caught:
        fia(q, k, v, **{"num_heads": 2, "input_layout": "BNSD", **changes})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NpuComposeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    q, k, v = drawn(2, 2, 2, 2, 4, torch.float32)
    with pytest.raises(UnsupportedArgument, match=r"'value' is torch.float16"):
        fia(q, k, v.half(), num_heads=2, input_layout="BNSD")
    with pytest.raises(UnsupportedArgument, match="'key' does not fit"):
        fia(q, k[:, :, :3], v, num_heads=2, input_layout="BNSD")
    with pytest.raises(UnsupportedArgument, match="'key' has another head size"):
        fia(q, k[..., :4], v, num_heads=2, input_layout="BNSD")
    with pytest.raises(UnsupportedArgument, match="'query' has 4 dimensions"):
        fia(q, k, v, num_heads=2)
    with pytest.raises(UnsupportedArgument, match="'query' has 2 tokens"):
        ifa(q, k, v, num_heads=2, input_layout="BNSD")
    with pytest.raises(UnsupportedArgument, match="'padding_mask'"):
        ifa(q[:, :, :1], k, v, num_heads=2, input_layout="BNSD", padding_mask=ONE)
    with pytest.raises(UnsupportedArgument, match="'input_layout' is 'BNSD_BSND'"):
        ifa(q[:, :, :1], k, v, num_heads=2, input_layout="BNSD_BSND")
    with pytest.raises(UnsupportedArgument, match="needs Q_S > 1"):
        fia(q[:, :, :1], k, v, num_heads=2, input_layout="BNSD_BSND")


@pytest.mark.parametrize(("op", "layout", "rows"), CALLS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (1, 1)])
def test_fake_results_have_the_shape_dtype_and_strides_of_real_ones(
    op: str, layout: str, rows: int, heads: int, kv_heads: int
) -> None:
    tensors = [to_layout(t, layout.split("_")[0]) for t in drawn(2, heads, kv_heads, rows, 5, torch.float16)]
    kwargs: dict[str, Any] = {"num_heads": heads, "num_key_value_heads": kv_heads, "input_layout": layout}
    for lse in (False, True) if op == "fia" else (None,):
        more = {} if lse is None else {"softmax_lse_flag": lse}
        call = fia if op == "fia" else ifa
        real, meta = call(*tensors, **kwargs, **more), call(*(t.to("meta") for t in tensors), **kwargs, **more)
        for one, other in zip(*((x,) if op == "ifa" else x for x in (real, meta)), strict=True):
            facts = [(tuple(x.shape), x.dtype, x.stride(), x.is_contiguous()) for x in (one, other)]
            assert facts[0] == facts[1]


@pytest.mark.parametrize("layout", ["BSH", "BNSD"])
def test_torchs_own_operator_checks_pass(layout: str) -> None:
    tensors = tuple(to_layout(t, layout) for t in drawn(2, 4, 2, 1, 5, torch.float32))
    common: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout}
    torch.library.opcheck(
        torch.ops.npu.npu_fused_infer_attention_score.default,
        tensors,
        {**common, "actual_seq_lengths_kv": [3, 5], "softmax_lse_flag": True},
    )
    torch.library.opcheck(
        torch.ops.npu.npu_incre_flash_attention.default, tensors, {**common, "actual_seq_lengths": [3, 5]}
    )


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 1), (False, 3)])
def test_lengths_are_symbols_in_a_dynamic_graph_and_constants_in_a_static_one(dynamic: bool, graphs: int) -> None:
    torch._dynamo.reset()

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        return fia(q, k, v, num_heads=2, input_layout="BNSD", actual_seq_lengths_kv=lengths)[0]

    q, k, v = drawn(2, 2, 2, 1, 32, torch.float32)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=dynamic)
    for lengths in ([11, 12], [13, 20], [32, 9]):
        assert torch.equal(compiled(q, k, v, lengths), step(q, k, v, lengths))
    assert counter.frame_count == graphs


def test_a_refusal_while_compiling_still_names_the_argument() -> None:
    q, k, v = drawn(1, 1, 1, 1, 4, torch.float32)
    compiled = torch.compile(lambda: fia(q, k, v, input_layout="SBH")[0], backend="eager")
    with pytest.raises(Exception, match="'input_layout' is 'SBH'"):
        compiled()
