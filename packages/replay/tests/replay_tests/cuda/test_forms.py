"""Inputs have a recording's signature, or differ in one thing; the quick look and the closer one agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from npucompose_replay.cuda import forms
from npucompose_replay.cuda.forms import Forms

FIXED = torch.randn(4)
WHOLE = torch.randn(8)


def made() -> tuple[Forms, list[Any]]:
    inputs = [torch.randn(2, 3), FIXED, 3, WHOLE]
    return Forms(inputs, fixed={1}, from_zero={3}, device="cpu"), inputs


def odd(tensor: torch.Tensor) -> torch.Tensor:
    class Odd(torch.Tensor):
        pass

    return tensor.as_subclass(Odd)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


OTHERS: dict[str, tuple[int, Callable[[], Any]]] = {
    "another shape": (0, lambda: torch.randn(3, 2)),
    "other strides": (0, lambda: torch.randn(3, 2).t()),
    "another type": (0, lambda: torch.randn(2, 3).double()),
    "another device": (0, lambda: torch.empty(2, 3, device="meta")),
    "a sign that kernels put in": (0, lambda: torch._neg_view(torch.randn(2, 3))),
    "no tensor": (0, lambda: 3.0),
    "no memory": (0, lambda: freed(torch.randn(2, 3))),
    "another place": (1, lambda: FIXED.clone()),
    "another number": (2, lambda: 4),
    "a number of another type": (2, lambda: 3.0),
    "a tensor for a number": (2, lambda: torch.tensor(3)),
    "another place within its storage": (3, lambda: torch.randn(9)[1:]),
}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("what", OTHERS)
def test_one_difference_is_enough(what: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not quick:
        monkeypatch.setattr(forms, "layout_guard", lambda _: lambda *_: False)
    found, inputs = made()
    assert found.fit(inputs)
    assert found.fit([torch.randn(2, 3), FIXED, 3, torch.randn(8)])
    at, other = OTHERS[what]
    assert not found.fit([*inputs[:at], other(), *inputs[at + 1 :]])
    assert found.fit(inputs)


def test_more_or_fewer_inputs_do_not_fit() -> None:
    found, inputs = made()
    assert not found.fit(inputs[:3])
    assert not found.fit([*inputs, 1])
    assert not found.fit([])


def test_memory_of_a_fixed_input_that_was_cut_short_is_noticed() -> None:
    fixed = torch.randn(1024)
    found = Forms([fixed], fixed={0}, from_zero=(), device="cpu")
    assert found.fit([fixed])
    other = torch.empty(0).set_(fixed.untyped_storage(), 0, (1024,))
    assert found.fit([other])
    fixed.untyped_storage().resize_(64)
    assert not found.fit([fixed])


def test_a_class_that_leaves_operators_to_torch_is_looked_at_once_more_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    found, inputs = made()
    looks: list[int] = []
    genuine = forms.gate.first_refused
    monkeypatch.setattr(forms.gate, "first_refused", lambda *a, **k: looks.append(1) or genuine(*a, **k))
    assert found.fit(inputs)
    assert looks == []
    parameter = [torch.nn.Parameter(torch.randn(2, 3), requires_grad=False), *inputs[1:]]
    for _ in range(3):
        assert found.fit(parameter)
    assert looks == [1]
    assert found.fit([odd(torch.randn(2, 3)), *inputs[1:]])
    assert looks == [1, 1]
