"""Attention over a cache in pages, over sequences in one row (T), and with rope apart, beside float64 loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from npucompose import ops
from tests.ops.test_attention import TOLERANCE, fia, ifa, written_out

ops.define()
HEADS, DEPTH, PAGE = 4, 16, 8
Q_LENGTHS, KV_LENGTHS = [3, 1, 2], [11, 5, 16]
CACHES = ("pages, tokens, H", "pages, N, tokens, D", "pages, N, D / 16, tokens, 16")
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def sequences(kv_heads: int, depth: int = DEPTH, rows: list[int] = Q_LENGTHS) -> list[tuple[torch.Tensor, ...]]:
    """Query, key and value of each sequence as [1, N, S, D]."""
    g = torch.Generator().manual_seed(kv_heads)
    return [
        tuple(
            torch.randn(1, n, s, depth, generator=g) for n, s in ((HEADS, q), (kv_heads, kv), (kv_heads, kv))
        )
        for q, kv in zip(rows, KV_LENGTHS, strict=True)
    ]  # fmt: skip


def in_pages(parts: list[torch.Tensor], form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(cache, table): the pages of all sequences in another order, full of NaN where there is no token."""
    counts = [-(-one.shape[2] // PAGE) for one in parts]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(1))
    cache = torch.full((len(order), PAGE, parts[0].shape[1], parts[0].shape[3]), math.nan)
    table = torch.full((len(parts), max(counts)), 99, dtype=torch.int32)
    taken = iter(order.tolist())
    for at, one in enumerate(parts):
        for page in range(counts[at]):
            number = next(taken)
            tokens = one[0, :, page * PAGE : (page + 1) * PAGE].transpose(0, 1)
            cache[number, : tokens.shape[0]] = tokens
            table[at, page] = number
    if form == CACHES[0]:
        return cache.flatten(2), table
    cache = cache.transpose(1, 2).contiguous()
    return (cache if form == CACHES[1] else cache.unflatten(3, (-1, 16)).transpose(2, 3).contiguous()), table


def wanted(parts: list[tuple[torch.Tensor, ...]], causal: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(result, lse) of each sequence by itself."""

    def hides(kv: int, q: int) -> Any:
        return lambda b, i, j: causal and j > i + kv - q

    return [written_out(q, k, v, 0.3, [q.shape[2]], [k.shape[2]], hides(k.shape[2], q.shape[2])) for q, k, v in parts]


def one_row(parts: list[torch.Tensor], layout: str) -> torch.Tensor:
    """[T, N, D] or [N, T, D] of each sequence's [1, N, S, D]."""
    tokens = torch.cat([one[0].transpose(0, 1) for one in parts])
    return tokens if layout == "TND" else tokens.transpose(0, 1).contiguous()


def ends(lengths: list[int]) -> list[int]:
    return list(itertools.accumulate(lengths))


@pytest.mark.parametrize(("layout", "rows"), [("BNSD", 1), ("BSH", 1), ("BSND", 1), ("BNSD", 2), ("BNSD_BSND", 2)])
@pytest.mark.parametrize("form", CACHES)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_cache_in_pages_gives_what_the_same_cache_in_one_piece_gives(
    layout: str, rows: int, form: str, kv_heads: int
) -> None:
    parts = sequences(kv_heads, rows=[rows] * 3)
    (key, table), (value, _) = (in_pages([one[at] for one in parts], form) for at in (1, 2))
    inner, _, outer = layout.partition("_")
    query = torch.cat([one[0] for one in parts])
    query = query if inner == "BNSD" else query.transpose(1, 2).contiguous()
    query = query.flatten(2) if inner == "BSH" else query
    named: dict[str, Any] = {"num_heads": HEADS, "num_key_value_heads": kv_heads, "input_layout": layout}
    paged: dict[str, Any] = {"block_table": table, "block_size": PAGE}
    out, lse = fia(
        query, key, value, **named, **paged, scale=0.3, actual_seq_lengths_kv=KV_LENGTHS, softmax_lse_flag=True
    )
    results, sums = (torch.cat(found).float() for found in zip(*wanted(parts), strict=True))
    if (outer or inner) != "BNSD":
        results = results.transpose(1, 2)
    torch.testing.assert_close(out, results.reshape(out.shape), atol=TOLERANCE[torch.float32], rtol=0)
    torch.testing.assert_close(lse, sums, atol=1e-4, rtol=0)
    if rows == 1 and not outer:
        alone = ifa(query, key, value, **named, **paged, scale_value=0.3, actual_seq_lengths=KV_LENGTHS)
        assert torch.equal(alone, out)


@pytest.mark.parametrize("layout", ["TND", "NTD", "TND_NTD", "NTD_TND"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["one row", *CACHES[:2]])
def test_sequences_in_one_row_are_attended_to_each_by_itself(layout: str, causal: bool, form: str) -> None:
    parts = sequences(2)
    inner, _, outer = layout.partition("_")
    query = one_row([one[0] for one in parts], inner)
    named: dict[str, Any] = {"num_heads": HEADS, "num_key_value_heads": 2, "input_layout": layout, "scale": 0.3}
    if causal:
        named |= {"sparse_mode": 3, "atten_mask": MASK}
    if form == "one row":
        key, value = (one_row([one[at] for one in parts], inner) for at in (1, 2))
        named |= {"actual_seq_lengths_kv": ends(KV_LENGTHS)}
    else:
        (key, table), (value, _) = (in_pages([one[at] for one in parts], form) for at in (1, 2))
        named |= {"block_table": table, "block_size": PAGE, "actual_seq_lengths_kv": KV_LENGTHS}
    out, lse = fia(query, key, value, **named, actual_seq_lengths=ends(Q_LENGTHS), softmax_lse_flag=True)
    results, sums = zip(*wanted(parts, causal), strict=True)
    torch.testing.assert_close(out, one_row(list(results), outer or inner).float(), atol=2e-5, rtol=0)
    torch.testing.assert_close(lse, one_row(list(sums), "TND").float(), atol=1e-4, rtol=0)
    assert out.is_contiguous()


@pytest.mark.parametrize("paged", [False, True])
def test_rope_apart_is_part_of_what_scores_are_made_of(paged: bool) -> None:
    """As MLA's decode step has it: one head of latents, which are keys and values, and rope beside them."""
    parts = sequences(1, rows=[1, 1, 1])
    rope = [tuple(torch.randn(1, *one[at].shape[1:3], 16) for at in (0, 1)) for one in parts]
    named: dict[str, Any] = {"num_heads": HEADS, "num_key_value_heads": 1, "input_layout": "BNSD", "scale": 0.3}
    query, query_rope = torch.cat([one[0] for one in parts]), torch.cat([one[0] for one in rope])
    latents, turned = [one[1] for one in parts], [one[1] for one in rope]
    if paged:
        (key, table), (key_rope, _) = (in_pages(one, CACHES[1]) for one in (latents, turned))
        named |= {"block_table": table, "block_size": PAGE}
    else:
        key, key_rope = (
            torch.cat([torch.nn.functional.pad(t, (0, 0, 0, 16 - t.shape[2])) for t in one])
            for one in (latents, turned)
        )
    out, _ = fia(query, key, key, **named, query_rope=query_rope, key_rope=key_rope, actual_seq_lengths_kv=KV_LENGTHS)
    joined = [
        (torch.cat([q, q_rope], -1), torch.cat([k, k_rope], -1), k)
        for (q, k, _), (q_rope, k_rope) in zip(parts, rope, strict=True)
    ]
    torch.testing.assert_close(out, torch.cat([found[0] for found in wanted(joined)]).float(), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"actual_seq_lengths": None}, "actual_seq_lengths"),
        ({"actual_seq_lengths": [3, 4, 5]}, "actual_seq_lengths"),
        ({"actual_seq_lengths": [4, 3, 6]}, "actual_seq_lengths"),
        ({"actual_seq_lengths_kv": None}, "actual_seq_lengths_kv"),
        ({"actual_seq_lengths_kv": [11, 32]}, "actual_seq_lengths_kv"),
    ],
)
def test_sums_that_do_not_fit_the_row_are_refused_by_name(changes: dict[str, Any], argument: str) -> None:
    parts = sequences(4)
    query, key, value = (one_row([one[at] for one in parts], "TND") for at in range(3))
    named = {"actual_seq_lengths": ends(Q_LENGTHS), "actual_seq_lengths_kv": ends(KV_LENGTHS), **changes}
    with pytest.raises(ValueError, match=f"'{argument}' is"):
        fia(query, key, value, num_heads=HEADS, input_layout="TND", **named)
