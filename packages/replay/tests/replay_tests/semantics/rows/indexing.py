"""Indexing, gathering, scattering, masks; sorting, searching; sizes that depend on values."""

from __future__ import annotations

import torch

from replay_tests.semantics.rows import Compiled, row


def with_places(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), torch.randint(0, 5, (6,))


@row(fast=True, inputs=with_places)
def rows_by_index(compiled: Compiled):
    return compiled(lambda x, at: (x[at], x[at, 1], x.index_select(0, at), x.take(at)))


@row(inputs=with_places)
def scatter_and_add(compiled: Compiled):
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(5, 4).index_add(0, at, x[at]) + torch.zeros(5).scatter_add(0, at, x[at, 0])[:, None]

    return compiled(f)


@row(inputs=with_places)
def scatter_reduce(compiled: Compiled):
    return compiled(lambda x, at: torch.zeros(5).scatter_reduce(0, at, x[at, 2], "amax", include_self=False))


@row
def gather_along_a_dimension(compiled: Compiled):
    return compiled(lambda x: x.gather(1, x.argsort(1)))


@row
def masks(compiled: Compiled):
    return compiled(lambda x: (x.masked_fill(x > 0, 0), torch.where(x > 0, x, -x), x.clamp(min=0)))


@row(fast=True)
def rows_chosen_by_a_mask(compiled: Compiled):
    return compiled(lambda x: x[x[:, 0] > 0] * 2)


@row(fast=True)
def nonzero(compiled: Compiled):
    return compiled(lambda x: torch.nonzero(x > 0) * 2)


@row
def masked_select(compiled: Compiled):
    f = compiled(lambda x: x.masked_select(x > 0).sum())
    return lambda x, y: [f(x), f(y)]


@row(fast=True)
def sizes_from_data_are_kept(compiled: Compiled):
    f = compiled(lambda x: x[x > 0])
    return lambda x, y: [f(x), f(y), f(x + y)]


@row(inputs=lambda k: (torch.randint(0, 5, (12,)),))
def unique(compiled: Compiled):
    def f(x: torch.Tensor):
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        return values, inverse, counts, values[inverse] == x

    return compiled(f)


@row
def sort_and_topk(compiled: Compiled):
    return compiled(lambda x: (*x.sort(dim=1), *x.topk(2, dim=0), x.argmax(1), *x.kthvalue(2), *x.median(0)))


@row(inputs=lambda k: (torch.randint(0, 3, (9,)).float(),))
def a_stable_sort_of_equals(compiled: Compiled):
    return compiled(lambda x: torch.sort(x, stable=True))


@row
def searching(compiled: Compiled):
    return compiled(lambda x: torch.searchsorted(x.flatten().sort().values, torch.tensor([0.0, 1.0])))


@row(inputs=lambda k: (torch.randint(0, 6, (20,)),))
def counting(compiled: Compiled):
    return compiled(lambda x: (torch.bincount(x, minlength=6), torch.histc(x.float(), 6, 0, 5)))


@row
def repeat_interleave_by_data(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0)

    return compiled(f)


@row
def assignments_by_mask(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[y > 0] = 0
        y[1:, ::2] = 5
        y[..., -1] *= 2
        return y

    return compiled(f)


@row
def none_and_ellipsis(compiled: Compiled):
    return compiled(lambda x: (x[None, ..., 1:], x[:, None, 0], x[..., None].squeeze(-1), x[-1]))


@row
def rolls_flips_and_diagonals(compiled: Compiled):
    return compiled(lambda x: (x.roll(1, 0), x.flip(1), x.diagonal(), torch.tril(x), x.rot90(), torch.diag_embed(x)))


@row
def splits_and_chunks(compiled: Compiled):
    return compiled(lambda x: (*x.split([1, 3], 1), *x.chunk(2), *x.unbind(0), *torch.tensor_split(x, 3, 1)))


@row
def cumulative_operations(compiled: Compiled):
    return compiled(lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(0), x.logcumsumexp(1), x.diff(dim=0)))
