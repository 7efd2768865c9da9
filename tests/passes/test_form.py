"""Two values of one form lie in memory alike: whoever reads one may be given the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from npucompose.passes.metadata import same_form


def plain() -> torch.Tensor:
    return torch.zeros(32)[4:16].view(3, 4)


OTHERS: dict[str, Callable[[], object]] = {
    "shape": lambda: torch.zeros(32)[4:16].view(4, 3),
    "number of dimensions": lambda: torch.zeros(32)[4:16].view(3, 4, 1),
    "strides": lambda: torch.zeros(32)[4:16].view(4, 3).t(),
    "offset": lambda: torch.zeros(32)[8:20].view(3, 4),
    "dtype": lambda: torch.zeros(32, dtype=torch.float64)[4:16].view(3, 4),
    "device": lambda: torch.zeros(32, device="meta")[4:16].view(3, 4),
    "layout": lambda: torch.zeros(3, 4).to_sparse(),
    "negative bit": lambda: torch._neg_view(plain()),
    "no tensor": lambda: 12,
}


def test_values_do_not_count() -> None:
    assert same_form(plain(), plain() + 1) is False  # the sum lies at the begin of its memory
    assert same_form(plain(), torch.ones(32)[4:16].view(3, 4))


@pytest.mark.parametrize("what", OTHERS)
def test_everything_else_counts(what: str) -> None:
    other = OTHERS[what]()
    assert not same_form(plain(), other)
    assert not same_form(other, plain())


def test_a_conjugate_is_another_form() -> None:
    value = torch.zeros(3, dtype=torch.complex64)
    assert same_form(value, value.clone())
    assert not same_form(value, value.conj())


def test_the_stride_of_one_element_means_nothing() -> None:
    assert same_form(torch.zeros(1, 4), torch.zeros(4, 1).t())
    assert not same_form(torch.zeros(2, 4), torch.zeros(4, 2).t())
