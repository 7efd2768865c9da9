"""Programs that no recording can hold whole, each with what makes its inputs and how it is to be cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention

Tensors = tuple[torch.Tensor, ...]


@frozen
class CutProgram:
    function: Callable[..., Any]
    words: str
    """Of its partition, without the line."""
    inputs: Callable[[], Tensors] = lambda: (torch.randn(4, 4),)
    config: Mapping[str, Any] = field(factory=dict[str, Any])
    """Of Dynamo."""


@torch.library.custom_op("npucompose_cut::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("npucompose_cut::bump_and_double", mutates_args={"x"})
def bump_and_double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


@bump_and_double.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("npucompose_cut::swap", mutates_args={"x", "y"})
def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


class Count:
    """How often the operator `count` ran: state that torch does not know of."""

    calls = 0


@torch.library.custom_op("npucompose_cut::count", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def count(x: torch.Tensor) -> torch.Tensor:
    Count.calls += 1
    return x * Count.calls


@count.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("npucompose_cut::recorded_count", mutates_args=())
def recorded_count(x: torch.Tensor) -> torch.Tensor:
    Count.calls += 1
    return x * Count.calls


@recorded_count.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (x * 2,)) + 1


def loop(x: torch.Tensor) -> torch.Tensor:
    counter = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (counter, x + 1))[1] + 1


def flex(q: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, q + 1, q) * 2  # type: ignore[operator]


def scanned(x: torch.Tensor) -> torch.Tensor:
    return scan(lambda c, y: (c + y, c * y), torch.zeros(4), x + 1)[1] + 1


def scanned_in_pairs(x: torch.Tensor) -> torch.Tensor:
    return associative_scan(lambda a, b: a * b, x + 1, 0, combine_mode="generic") + 1


def writes_an_input(x: torch.Tensor) -> torch.Tensor:
    bump(x)
    return x + 1


def writes_and_the_old_value_is_read(x: torch.Tensor) -> Tensors:
    y = x * 2
    z = y + 1
    bump(z)
    w = z * 3
    bump(w)
    return w, z, y


def writes_views(x: torch.Tensor) -> Tensors:
    y = x * 2
    bump(y)
    v = y[1:]
    z = bump_and_double(v, x[1:])
    bump(y.t())
    return y + 1, z


def writes_two(x: torch.Tensor) -> Tensors:
    y = x + 1
    swap(x, y)
    return y, x * 1


def writes_what_it_reads(x: torch.Tensor) -> Tensors:
    y = x * 2
    return bump_and_double(y[2:], y[:2]), y


def writes_behind_a_cut(x: torch.Tensor) -> Tensors:
    y = x * 2
    v = y[1:]
    w = count(v)
    v.add_(w)
    bump(v.t())
    u = count(y)
    x.add_(u)
    return y, u, v.t()


def cuts_twice(x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x + 1,)) * 2
    return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y + 1,)) * 2


def draws(x: torch.Tensor) -> torch.Tensor:
    dropped = torch.nn.functional.dropout(count(torch.nn.functional.dropout(x)))
    return dropped + torch.rand(4, 4)


SCALARS, SHAPES = {"capture_scalar_outputs": True}, {"capture_dynamic_output_shape_ops": True}
ONE = "1 segment"
TWO = "2 segments, 1 operator outside recordings: {}"
PROGRAMS: Mapping[str, CutProgram] = {
    "cond": CutProgram(cond, TWO.format("cond")),
    "two conds": CutProgram(cuts_twice, "3 segments, 2 operators outside recordings: cond, cond"),
    "while_loop": CutProgram(loop, TWO.format("while_loop")),
    "flex_attention": CutProgram(flex, TWO.format("flex_attention"), lambda: (torch.randn(1, 2, 16, 8),)),
    "scan": CutProgram(scanned, TWO.format("scan")),
    "associative_scan": CutProgram(scanned_in_pairs, ONE),
    "an operator that writes an input": CutProgram(writes_an_input, ONE),
    "an operator that writes, and the old value is read": CutProgram(writes_and_the_old_value_is_read, ONE),
    "operators that write views, with and without a result": CutProgram(writes_views, ONE),
    "an operator that writes two arguments": CutProgram(writes_two, ONE),
    "an operator that writes what it reads": CutProgram(writes_what_it_reads, ONE),
    "writes behind a cut": CutProgram(
        writes_behind_a_cut, "3 segments, 2 operators outside recordings: npucompose_cut.count, npucompose_cut.count"
    ),
    "state that torch does not know": CutProgram(lambda x: recorded_count(x + 1) * 2, ONE),
    "random numbers on both sides": CutProgram(draws, TWO.format("npucompose_cut.count")),
    "item of a float": CutProgram(lambda x: x * x.sum().item(), ONE, config=SCALARS),
    "item of an int": CutProgram(
        lambda x, n: torch.zeros(n.item()) + x.sum() * 2,
        "1 segment, 1 operator outside recordings: aten._local_scalar_dense",
        lambda: (torch.randn(3), torch.randint(2, 5, ())),
        SCALARS,
    ),
    "nonzero": CutProgram(lambda x: (x[(x > 0).nonzero()[:, 0]] * 2).sum(), TWO.format("aten.nonzero"), config=SHAPES),
    "masked_select": CutProgram(
        lambda x: torch.masked_select(x + 1, x > 0) * 2, TWO.format("aten.masked_select"), config=SHAPES
    ),
    "a mask as an index": CutProgram(lambda x: (x + 1)[x > 0] * 2, TWO.format("aten.index.Tensor"), config=SHAPES),
}
