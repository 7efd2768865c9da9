"""Two pieces of one memory: which operators could not write over what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.graphs.overlaps import OVERLAP, overlapping


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (lambda x: x[1:] - x[:-1], ["aten.sub.Tensor"]),
        (lambda x: x.clone()[1:].sub_(x[:-1]), []),
        (lambda x: x[4:] - x[:4], []),
        (lambda x: x[1:] - x[1:], []),
        (lambda x: x - 1, []),
        (lambda x: x[1:].view(7, 1) * x.unsqueeze(1)[:-1], ["aten.mul.Tensor"]),
        (lambda x: torch.cat([x[1:], x[:-1]]), []),
        (lambda x: x.abs()[1:] - x[:-1], []),
    ],
)
def test_an_operator_that_reads_overlapping_pieces(program: Callable[..., Any], found: list[str]) -> None:
    graph = make_fx(program, tracing_mode="fake")(torch.ones(8)).graph
    outside = list(overlapping(graph))
    assert [one.operator for one in outside] == found
    assert {one.reason for one in outside} <= {OVERLAP}


def test_an_operator_in_place_counts_too() -> None:
    graph = make_fx(lambda x: x[1:].sub_(x[:-1]), tracing_mode="fake")(torch.ones(8)).graph
    assert [one.operator for one in overlapping(graph)] == ["aten.sub_.Tensor"]
