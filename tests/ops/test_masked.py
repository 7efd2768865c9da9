"""Attention over [B, N, S, D] itself: what is empty, what is cut and not masked, what an lse is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.ops.masked import Attended, Hidden, attend


class Counted(TorchDispatchMode):
    """How often which operator is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def drawn(batch: int = 2, heads: int = 2, rows: int = 3, columns: int = 4, depth: int = 8) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(3)
    return tuple(torch.randn(batch, heads, s, depth, generator=g) for s in (rows, columns, columns))


def run(
    q: Any, k: Any, v: Any, *, hidden: Hidden | None = None, q_lengths: Any = None, kv_lengths: Any = None,
    want_lse: bool = True,
) -> Attended:  # fmt: skip
    return attend(q, k, v, 0.5, hidden or Hidden(), None, q_lengths, kv_lengths, want_lse)


@pytest.mark.parametrize(("rows", "kv_lengths"), [(3, [0, 0]), (0, None), (0, [1, 2])])
def test_without_a_key_or_a_query_all_is_zero(rows: int, kv_lengths: Any) -> None:
    q, k, v = (t.half() for t in drawn(rows=rows))
    done = run(q, k, v, kv_lengths=kv_lengths)
    assert (done.out.shape, done.out.dtype, done.out.count_nonzero().item()) == ((2, 2, rows, 8), torch.float32, 0)
    assert (done.lse.shape, done.lse.dtype) == ((2, 2, rows, 1), torch.float32)
    assert torch.isneginf(done.lse).all()
    silent = run(q, k, v, kv_lengths=kv_lengths, want_lse=False)
    assert (silent.lse.shape, silent.lse.dtype) == ((0,), torch.float32)


def test_no_batch_at_all_is_no_error() -> None:
    done = run(*drawn(batch=0))
    assert (done.out.shape, done.lse.shape) == ((0, 2, 3, 8), (0, 2, 3, 1))


def test_the_lse_is_that_of_the_scores() -> None:
    q, k, v = drawn()
    scores = q @ k.transpose(2, 3) * 0.5
    done = run(q, k, v)
    torch.testing.assert_close(done.lse, scores.exp().sum(-1, keepdim=True).log())
    torch.testing.assert_close(done.out, scores.softmax(-1) @ v)
    assert run(q, k, v, want_lse=False).lse.shape == (0,)


@pytest.mark.parametrize(
    ("q_lengths", "kv_lengths", "fills"),
    [
        (None, None, 0),
        ([3, 3], [4, 4], 0),
        (None, [2, 2], 0),
        ([3, 2], [2, 2], 2),
        (None, [2, 3], 3),
        ([1, 1], [4, 1], 3),
    ],
)
def test_a_length_that_all_share_is_cut_and_others_are_masked(q_lengths: Any, kv_lengths: Any, fills: int) -> None:
    """Scores and their weights are filled where anything is masked, the values where a length is its own."""
    q, k, v = drawn()
    with Counted() as counted:
        done = run(q, k, v, q_lengths=q_lengths, kv_lengths=kv_lengths)
    assert counted.calls["masked_fill"] + counted.calls["masked_fill_"] == fills
    for batch in range(2):
        seen, asked = (kv_lengths or [4, 4])[batch], (q_lengths or [3, 3])[batch]
        alone = run(*(t[batch : batch + 1] for t in (q[:, :, :asked], k[:, :, :seen], v[:, :, :seen])))
        torch.testing.assert_close(done.out[batch : batch + 1, :, :asked], alone.out)
        assert done.out[batch, :, asked:].count_nonzero() == 0


@pytest.mark.parametrize("causal", ["left_up", "right_down"])
def test_the_diagonal_starts_at_the_left_or_ends_at_the_right(causal: Any) -> None:
    q, k, v = drawn(batch=1)
    behind = torch.ones(3, 4).triu(1 if causal == "left_up" else 2).bool()
    wanted = run(q, k, v, hidden=Hidden(mask=behind[None, None]))
    assert torch.equal(run(q, k, v, hidden=Hidden(causal=causal)).out, wanted.out)
