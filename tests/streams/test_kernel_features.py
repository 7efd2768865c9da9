"""The family and the size of a kernel, of which a profile's table says the time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx

from npucompose.streams.calibrated import UNMAPPED, Feature, family_of, of_row
from npucompose.streams.cost import name_of, rows_of


@pytest.mark.parametrize(
    ("operator", "reads", "made", "flops", "feature"),
    [
        (None, (10.0, 20.0), 5.0, 0.0, Feature(UNMAPPED, "Own", 35.0)),
        (None, (), 0.0, 0.0, Feature(UNMAPPED, "Own", 1.0)),
        ("mm", (10.0, 20.0), 5.0, 30.0, Feature("product", "mm", 35.0)),
        ("mm", (10.0, 20.0), 5.0, 40.0, Feature("product", "mm", 40.0)),
        ("bmm", (), 0.0, 0.0, Feature("product", "bmm", 1.0)),
        ("abs", (10.0,), 5.0, 99.0, Feature("pointwise", "abs", 15.0)),
        ("abs", (), 0.0, 0.0, Feature("pointwise", "abs", 1.0)),
        ("embedding", (1000.0, 8.0), 5.0, 0.0, Feature("gather", "embedding", 10.0)),
        ("embedding", (1000.0, 8.0), 0.25, 0.0, Feature("gather", "embedding", 1.0)),
        ("scatter_add", (1000.0, 8.0, 16.0), 1000.0, 0.0, Feature("update", "scatter_add", 24.0)),
        ("scatter_add", (1000.0, 0.0), 1000.0, 0.0, Feature("update", "scatter_add", 1.0)),
        ("scatter_add", (7.0,), 9.0, 0.0, Feature("update", "scatter_add", 16.0)),
    ],
)
def test_a_size_is_what_is_moved_found_or_written_and_one_at_least(
    operator: str | None, reads: tuple[float, ...], made: float, flops: float, feature: Feature
) -> None:
    assert of_row(operator, "Own", reads, made, flops) == feature


@pytest.mark.parametrize(
    ("operator", "family"),
    [("gelu", "transcendental"), ("convolution_backward", "convolution"), ("npu_fusion_attention", "attention"),
     ("nobody_knows", "pointwise")],
)  # fmt: skip
def test_an_operator_has_a_family(operator: str, family: str) -> None:
    assert family_of(operator) == family


def test_a_product_has_rows_and_other_kernels_any_number() -> None:
    graph = fx.Graph()

    def kernel(target: object, *shape: int) -> fx.Node:
        node = graph.call_function(target, ())  # type: ignore[arg-type]
        node.meta["val"] = torch.empty(shape)
        return node

    aten = torch.ops.aten
    assert rows_of(kernel(aten.mm.default, 6, 4)) == 6
    assert rows_of(kernel(aten.bmm.default, 2, 5, 4)) == 5
    assert rows_of(kernel(aten.mv.default, 6)) == 1.0
    assert rows_of(kernel(aten.relu.default, 6, 4)) == math.inf
    assert rows_of(kernel(aten.convolution.default, 1, 2, 6, 4)) == math.inf
    assert (name_of(kernel(aten.mm.default, 1)), name_of(kernel(len, 1))) == ("mm", "")
