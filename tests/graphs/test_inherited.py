"""Torch's own errors, seen in graphs: each row that has a pattern is named for its program, and not for a near miss."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import frozen

from npucompose.graphs.inherited import Inherited, inherited_errors
from tests.graph_helpers import rows_shown

ROWS = inherited_errors().rows
X, S = torch.arange(24.0).reshape(4, 6), torch.ones(2, 6)
WHOLE = torch.arange(24).reshape(4, 6)


@frozen
class NearMiss:
    """A function that torch computes as eager does, though it nearly has the pattern of a row."""

    of: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def half_a_swap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = a.clone()
    a.copy_(b)
    return a + before


def a_swap_with_a_sum(a: torch.Tensor, b: torch.Tensor) -> None:
    before = a + 0.5
    a.copy_(b)
    b.copy_(before)


def a_computed_value_that_is_copied(x: torch.Tensor) -> torch.Tensor:
    new = x + 1
    x.copy_(new)
    return new


def a_written_input_that_is_returned(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    x[1:3] = source
    return x


def a_written_input_that_is_read(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    x[1:3] = source
    return x * 2


def a_scattered_slice_alone(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, source, 0, 1, 3)


def a_scattered_slice_that_is_read(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    y = torch.slice_scatter(x, source, 0, 1, 3)
    x.zero_()
    return y + 1


def a_scattered_slice_of_what_is_added_to(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    y = torch.slice_scatter(x, source, 0, 1, 3)
    x.add_(1)
    return y


def a_scattered_slice_of_what_is_read_afterwards(x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.slice_scatter(x, source, 0, 1, 3)
    z = x * 2
    x.zero_()
    return y, z


def a_view_of_another_dtype_before_an_addition(x: torch.Tensor) -> torch.Tensor:
    y = x.view(torch.int32) * 2
    x.add_(1)
    return y.view(torch.int64)


def a_view_of_another_dtype_that_stays_so(x: torch.Tensor) -> torch.Tensor:
    y = x.view(torch.int32) * 2
    x[1:2] = 0
    return y


def a_draw_that_is_read_late(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.randint(0, 9, (4, 1))
    return x + torch.rand(4, 6) + drawn


def a_buffer_that_is_filled(x: torch.Tensor) -> torch.Tensor:
    x.uniform_()
    made = torch.empty(4, 6)
    made.normal_()
    return made + 1


NEAR_MISSES = (
    NearMiss("dtypes_and_layouts.special_numbers", lambda x: x * 0, (WHOLE,)),
    NearMiss("dtypes_and_layouts.special_numbers", lambda x: x * torch.zeros(4, 6), (X,)),
    NearMiss("in_place.a_swap_in_place", half_a_swap, (X.clone(), X + 1)),
    NearMiss("in_place.a_swap_in_place", a_swap_with_a_sum, (X.clone(), X + 1)),
    NearMiss("inherited.a_copied_value_that_is_returned", a_computed_value_that_is_copied, (X.clone(),)),
    NearMiss("inherited.a_copied_value_that_is_returned", a_written_input_that_is_returned, (X.clone(), S)),
    NearMiss("inherited.a_copied_value_that_is_returned", a_written_input_that_is_read, (X.clone(), S)),
    NearMiss("inherited.a_scattered_slice_of_what_is_cleared", a_scattered_slice_alone, (X, S)),
    NearMiss("inherited.a_scattered_slice_of_what_is_cleared", a_scattered_slice_that_is_read, (X.clone(), S)),
    NearMiss("inherited.a_scattered_slice_of_what_is_cleared", a_scattered_slice_of_what_is_added_to, (X.clone(), S)),
    NearMiss(
        "inherited.a_scattered_slice_of_what_is_cleared",
        a_scattered_slice_of_what_is_read_afterwards,
        (X.clone(), S),
    ),
    NearMiss(
        "inherited.a_view_of_another_type_before_a_write", a_view_of_another_dtype_before_an_addition, (WHOLE.clone(),)
    ),
    NearMiss(
        "inherited.a_view_of_another_type_before_a_write", a_view_of_another_dtype_that_stays_so, (WHOLE.clone(),)
    ),
    NearMiss("inherited.a_draw_that_is_not_read", a_draw_that_is_read_late, (X,)),
    NearMiss("inherited.a_draw_that_is_not_read", a_buffer_that_is_filled, (X.clone(),)),
    NearMiss("python_features.star_arguments", lambda x: x + 0, (X,)),
    NearMiss("python_features.star_arguments", lambda x: (x + torch.zeros(4, 6)) * 2, (X,)),
    NearMiss("python_features.star_arguments", lambda x: x + torch.zeros(4, 6), (WHOLE,)),
    NearMiss("python_features.star_arguments", lambda x: x + torch.zeros(3, 4, 6), (X,)),
    NearMiss("python_features.star_arguments", lambda x: x + torch.ones(4, 6), (X,)),
    NearMiss("random_numbers.python_random_numbers", lambda x, number: x * number, (X, random.uniform(0, 1))),
)


@pytest.mark.parametrize("near", NEAR_MISSES, ids=lambda near: f"{near.of}-{near.function.__name__}")
def test_a_near_miss_shows_nothing(near: NearMiss) -> None:
    assert rows_shown(near.function, *near.inputs) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "near", [one for one in NEAR_MISSES if ROWS[one.of].fused], ids=lambda near: f"{near.of}-{near.function.__name__}"
)
def test_inductor_computes_a_near_miss_as_eager_does(near: NearMiss) -> None:
    def made(call: Callable[..., Any]) -> list[Any]:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in near.inputs]
        result = call(*given)
        results = [*result] if isinstance(result, tuple) else [result]
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        shares = [
            [one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in tensors]
            for one in results
            if one is not None
        ]
        return [*results, *given, shares]

    torch._dynamo.reset()
    with torch.no_grad():
        fused, eager = made(torch.compile(near.function, backend="inductor")), made(near.function)
    assert fused[-1] == eager[-1], "results lie in other inputs' memory"
    torch.testing.assert_close(fused[:-1], eager[:-1])


def test_the_sentence_names_mode_line_issue_and_the_mode_that_is_right() -> None:
    found = Inherited("inherited.a_scattered_slice_of_what_is_cleared", "m.py:3 in f: x.zero_()")
    assert found.words("graph_0", "max-autotune", fuses=True) == (
        "graph_0: torch itself computes this differently from eager in mode=max-autotune: a later write to an input "
        "reaches what was made of it (PyTorch's issue 198094), at m.py:3 in f: x.zero_() · derived: row "
        "inherited.a_scattered_slice_of_what_is_cleared of docs/semantics.md, seen with Inductor of torch 2.13.0; "
        "mode=reduce-overhead computes it as eager does."
    )
    drawn = Inherited("inherited.a_draw_that_is_not_read", None)
    assert "the tracing of torch 2.13.0; mode=max-autotune computes" in drawn.words("g", "reduce-overhead", fuses=False)
