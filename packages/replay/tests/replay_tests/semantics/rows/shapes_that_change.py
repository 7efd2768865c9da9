"""Sizes that differ from call to call, in calls that keep what they got."""

from __future__ import annotations

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row

AT_ONCE = ("target.when_new=at_once",)
"""Every signature is recorded when it first comes; by default only the first two of a graph are."""


def rows_of(*sizes: int):
    """Call k gets a matrix of sizes[k] rows."""
    return lambda k: (torch.randn(sizes[k % len(sizes)], 4),)


@row(fast=True, inputs=rows_of(3, 5, 3, 2, 5, 7))
def a_batch_that_changes(compiled: Compiled):
    return compiled(lambda x: (x * 2).softmax(0))


@row(fast=True, inputs=rows_of(3, 5, 2, 3, 5, 2), recording=AT_ONCE)
def a_batch_that_changes_and_is_recorded_at_once(compiled: Compiled):
    return compiled(lambda x: (x * 2).softmax(0))


@row(fast=True, inputs=rows_of(3, 5, 7, 2, 9, 11), overrides=("shapes=dynamic",))
def a_batch_that_is_a_symbol(compiled: Compiled):
    return compiled(lambda x: x @ x.t() + x.shape[0])


@row(inputs=rows_of(3, 5, 7, 2, 9, 11), overrides=("shapes=auto",))
def a_batch_that_becomes_a_symbol(compiled: Compiled):
    return compiled(lambda x: x.reshape(-1).cumsum(0))


@row(inputs=rows_of(1, 0, 2, 1, 0, 3))
def one_row_and_none(compiled: Compiled):
    return compiled(lambda x: (x.sum(0), x + 1))


@row(recording=AT_ONCE)
def many_shapes_kept_at_once(compiled: Compiled):
    f = compiled(lambda x: x.t() @ x)
    return lambda x, y: [f(torch.cat([x, y])[:n]) for n in (2, 4, 6, 2, 3, 4, 6)]


@row
def shapes_in_turns(compiled: Compiled):
    f = compiled(lambda x: x.relu().sum(1))

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x), f(x[:2]), f(x), f(x[:2])]

    return call


@row(recording=AT_ONCE)
def a_growing_sequence(compiled: Compiled):
    f = compiled(lambda x, table: x @ table[: x.shape[0]].t())
    table = torch.arange(40.0).reshape(10, 4)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for n in range(1, 6):
            found.append(f(torch.cat([x, x])[:n], table))
        return found

    return call


@row(recording=AT_ONCE)
def another_number_of_dimensions(compiled: Compiled):
    f = compiled(lambda x: x.mean(-1) * 2)
    return lambda x: [f(x), f(x[0]), f(x[None]), f(x)]


@row(fast=True, recording=AT_ONCE)
def another_dtype(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)
    return lambda x: [f(x), f(x.double()), f(x.bfloat16()), f(x.long()), f(x)]


@row(recording=AT_ONCE)
def a_list_of_another_length(compiled: Compiled):
    f = compiled(lambda xs: torch.cat(xs).sum(0))
    return lambda x, y: [f([x]), f([x, y]), f([x, y, x]), f([y])]


@row
def none_or_a_tensor(compiled: Compiled):
    f = compiled(lambda x, mask: x if mask is None else x.masked_fill(mask > 0, 0))
    return lambda x, y: [f(x, None), f(x, y), f(y, None), f(y, x)]


@row(recording=(*AT_ONCE, "compiler.debug.aclgraph.static_capture_size_limit=2"))
def more_shapes_than_recordings(compiled: Compiled):
    f = compiled(lambda x: x.tanh().sum(0))
    return lambda x, y: [f(torch.cat([x, y])[:n]) for n in (1, 2, 3, 4, 1, 2)]


@row(recording=(*AT_ONCE, "target.when_full=replace", "compiler.debug.aclgraph.static_capture_size_limit=2"))
def more_shapes_than_recordings_replaced(compiled: Compiled):
    f = compiled(lambda x: x.tanh() * 2)
    return lambda x, y: [f(torch.cat([x, y])[:n]) for n in (1, 2, 3, 1, 2, 3)]


@row(inputs=lambda k: (torch.randn(2, 3, 6 + k % 3, 6),))
def an_image_of_another_height(compiled: Compiled):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return compiled(net.requires_grad_(False))


@row(recording=AT_ONCE)
def twelve_shapes(compiled: Compiled):
    f = compiled(lambda x: x * x + 1)
    return lambda x: [f(torch.cat([x] * 4)[:n]) for n in range(1, 13)]


@row
def a_size_that_comes_from_a_tensor(compiled: Compiled):
    f = compiled(lambda x, n: x[:n].sum(0) * n)
    return lambda x: [f(x, int(n)) for n in torch.tensor([1, 3, 2])]
