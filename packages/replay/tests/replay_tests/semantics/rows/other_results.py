"""Operators of others that return, for some values, something else than they say, or free what they are given."""

from __future__ import annotations

from typing import Any

import torch

from replay_tests.semantics.rows import Compiled, row

FORMS = ("whole", "whole", "short", "empty", "whole", "other type")


def _formed(x: torch.Tensor, number: int) -> torch.Tensor:
    form = FORMS[number]
    if form == "short":
        return x[:1].clone()
    if form == "empty":
        return x[:0].clone()
    return x.to(torch.float64) if form == "other type" else x.clone()


@torch.library.custom_op("semantics::formed", mutates_args=())
def formed(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return _formed(x, int(number))


@formed.register_fake
def _(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("semantics::formed_pair", mutates_args=())
def formed_pair(x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, _formed(x, int(number))


@formed_pair.register_fake
def _(x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("semantics::formed_list", mutates_args=())
def formed_list(x: torch.Tensor, number: torch.Tensor) -> list[torch.Tensor]:
    return [_formed(x, int(number)), x * 2]


@formed_list.register_fake
def _(x: torch.Tensor, number: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


@torch.library.custom_op("semantics::formed_and_written", mutates_args={"total"})
def formed_and_written(x: torch.Tensor, number: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.sum())
    return _formed(x, int(number))


@formed_and_written.register_fake
def _(x: torch.Tensor, number: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("semantics::turned", mutates_args=())
def turned(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() if int(number) % 2 else x.clone()


@turned.register_fake
def _(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("semantics::frees", mutates_args=("total",))
def frees(x: torch.Tensor, total: torch.Tensor) -> None:
    total.add_(x)
    x.untyped_storage().resize_(0)


@frees.register_fake
def _(x: torch.Tensor, total: torch.Tensor) -> None:
    return None


def vector(k: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(8), torch.tensor(k)


@row(inputs=vector, fast=True, fused=False)
def a_result_of_another_form(compiled: Compiled):
    return compiled(lambda x, n: formed(x, n) + 1)


@row(inputs=vector, fused=False)
def a_result_of_another_form_that_is_returned(compiled: Compiled):
    return compiled(lambda x, n: formed(x, n))


@row(inputs=vector, fused=False)
def a_result_of_another_form_between_others(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        before = x.exp()
        other = formed(before, n)
        return [before, other.sum(), (other * 2).cumsum(0), before + 1]

    return compiled(f)


@row(inputs=vector, fused=False)
def the_second_of_two_results(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        one, other = formed_pair(x.sin(), n)
        return [one * 2, other + 1]

    return compiled(f)


@row(inputs=vector, fused=False)
def a_result_in_a_list(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        one, other = formed_list(x, n)
        return [one - 1, other]

    return compiled(f)


@row(inputs=vector, fused=False)
def two_results_of_other_forms(compiled: Compiled):
    return compiled(lambda x, n: [formed(x, n) + 1, formed(x * 2, n) - 1])


@row(inputs=lambda k: (torch.randn(8), torch.tensor(k), torch.zeros(1)), fused=False)
def an_input_that_is_written_before(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        other = formed_and_written(x, n, total)
        total.mul_(2)
        return other + total

    return compiled(f)


@row(inputs=lambda k: (torch.randn(4, 4), torch.tensor(k)), fused=False)
def a_result_in_another_order(compiled: Compiled):
    return compiled(lambda x, n: turned(x, n) + 1)


@row(inputs=vector, fused=False)
def a_result_that_is_held(compiled: Compiled):
    f, kept = compiled(lambda x, n: formed(x, n) * 2), list[Any]()

    def call(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        kept.append(f(x, n))
        return kept[-1]

    return call, kept


@row(inputs=lambda k: (torch.randn(8), torch.zeros(8)), fast=True)
def an_input_that_an_operator_frees(compiled: Compiled):
    def f(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        frees(x, total)
        return total + 1

    g = compiled(f)

    def call(x: torch.Tensor, total: torch.Tensor) -> list[Any]:
        given = x.clone()
        result = g(given, total)
        return [result, given.untyped_storage().nbytes()]

    return call


@row(inputs=lambda k: (torch.randn(8), torch.zeros(8)), fused=False)
def a_value_that_an_operator_frees(compiled: Compiled):
    def f(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        frees(x * 2, total)
        return total + 1

    return compiled(f)


@torch.library.custom_op("semantics::frees_later", mutates_args=("total",))
def frees_later(x: torch.Tensor, number: torch.Tensor, total: torch.Tensor) -> None:
    total.add_(x)
    if int(number) > 2:
        x.untyped_storage().resize_(0)


@frees_later.register_fake
def _(x: torch.Tensor, number: torch.Tensor, total: torch.Tensor) -> None:
    return None


@row(inputs=lambda k: (torch.randn(8), torch.tensor(k), torch.zeros(8)), fused=False)
def a_value_that_an_operator_frees_later(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        frees_later(x * 2, n, total)
        return total + 1

    return compiled(f)


@row(inputs=lambda k: (torch.randn(8), torch.tensor(k), torch.zeros(8)), fused=False)
def an_input_that_an_operator_frees_later(compiled: Compiled):
    def f(x: torch.Tensor, n: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        frees_later(x, n, total)
        return total + 1

    g = compiled(f)

    def call(x: torch.Tensor, n: torch.Tensor, total: torch.Tensor) -> list[Any]:
        given = x.clone()
        return [g(given, n, total), given.untyped_storage().nbytes()]

    return call
