"""Paddle's operators against torch's own functions, and their fake results against the real ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npucompose.ops.definitions import define_missing
from npucompose_extras.paddle import operators

operators.define()
paddle = torch.ops.paddle
MODES = list(itertools.product(("max", "avg"), ("NCHW", "NHWC"), (False, True), (False, True)))


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def forms(found: Any) -> list[Any]:
    results = found if isinstance(found, tuple) else (found,)
    return [(tuple(x.shape), x.dtype, x.stride()) for x in results]


def test_a_gradient_passes_where_the_output_is_above_zero_or_no_number() -> None:
    out = torch.tensor([-1.0, 0.0, -0.0, 2.0, float("nan"), float("inf")]).double()
    dout = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, -6.0])
    got = paddle.relu_grad(out, dout)
    assert got.tolist() == [0.0, 0.0, 0.0, 4.0, 5.0, -6.0]
    assert got.dtype == torch.float32
    assert forms(paddle.relu_grad(out.to("meta"), dout.to("meta"))) == forms(got)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_and_the_weight_of_the_labels_that_count(reduction: str, weighted: bool) -> None:
    x, label = image(5, 4).double().log_softmax(1), torch.tensor([0, 3, 1, 2, 3])
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0]).double() if weighted else None
    loss, total = paddle.nll_loss(x, label, weight, 1, reduction)
    assert torch.equal(loss, F.nll_loss(x, label, weight, ignore_index=1, reduction=reduction))
    counted = {"none": 0.0, "mean": 21.0 if weighted else 4.0, "sum": 21.0 if weighted else 4.0}[reduction]
    assert total.item() == counted
    arguments = (x, label, weight, 1, reduction)
    meta = paddle.nll_loss(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments))
    assert forms(meta) == forms((loss, total))


def test_the_loss_has_torch_s_defaults_and_takes_one_row() -> None:
    x, label = image(3, 4).log_softmax(1), torch.tensor([0, -100, 2])
    assert torch.equal(paddle.nll_loss(x, label)[0], F.nll_loss(x, label))
    one = paddle.nll_loss(x[0], label[0], None, -100, "none")
    assert torch.equal(one[0], F.nll_loss(x[0], label[0], reduction="none"))
    assert forms(paddle.nll_loss(x[0].to("meta"), label[0].to("meta"), None, -100, "none")) == forms(one)
    many = paddle.nll_loss(x.to("meta"), label.to("meta"))
    assert forms(many) == forms(paddle.nll_loss(x, label))


WINDOW: tuple[list[int], list[int], list[int]] = ([3, 2], [2, 1], [1, 0])


def expected_pool(x: torch.Tensor, kind: str, ceil_mode: bool, exclusive: bool) -> torch.Tensor:
    if kind == "max":
        return F.max_pool2d(x, *WINDOW, ceil_mode=ceil_mode)
    return F.avg_pool2d(x, *WINDOW, ceil_mode, count_include_pad=not exclusive)


@pytest.mark.parametrize(("kind", "data_format", "ceil_mode", "exclusive"), MODES)
def test_pooling_and_its_gradient_are_torch_s_in_either_layout(
    kind: str, data_format: str, ceil_mode: bool, exclusive: bool
) -> None:
    x = image(2, 3, 6, 5).requires_grad_()
    wanted = expected_pool(x, kind, ceil_mode, exclusive)
    given = image(*wanted.shape)
    (wanted_grad,) = torch.autograd.grad(wanted, x, given)

    def to(value: torch.Tensor, there: bool = True) -> torch.Tensor:
        if data_format == "NCHW":
            return value.detach()
        return value.detach().permute(0, 2, 3, 1).contiguous() if there else value.permute(0, 3, 1, 2)

    how = (*WINDOW, ceil_mode, exclusive, data_format, kind)
    got = paddle.pool2d(to(x), *how)
    grad = paddle.pool2d_grad(to(x), got, to(given), *how)
    assert torch.equal(to(got, there=False), wanted)
    torch.testing.assert_close(to(grad, there=False), wanted_grad)
    assert got.is_contiguous()
    assert grad.is_contiguous()
    meta = [value.to("meta") for value in (to(x), got, to(given))]
    assert forms(paddle.pool2d(meta[0], *how)) == forms(got)
    assert forms(paddle.pool2d_grad(*meta, *how)) == forms(grad)


def test_pooling_without_more_words_takes_the_largest_of_channels_first() -> None:
    x = image(1, 2, 5, 4)
    assert torch.equal(paddle.pool2d(x, [2, 2], [2, 2], [1, 1]), F.max_pool2d(x, 2, 2, 1))
    assert forms(paddle.pool2d(x.to("meta"), [2, 2], [2, 2], [1, 1])) == [((1, 2, 3, 3), torch.float32, (18, 9, 3, 1))]
    average = paddle.pool2d(x, [2, 2], [2, 2], [1, 1], pooling_type="avg")
    assert torch.equal(average, F.avg_pool2d(x, 2, 2, 1, count_include_pad=False))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_fake_result_has_as_many_windows_as_a_real_one(ceil_mode: bool) -> None:
    for size, kernel, stride in itertools.product(range(1, 9), range(1, 4), range(1, 5)):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding < kernel:
                continue
            x = torch.zeros(1, 1, size, 3)
            how = ([kernel, 1], [stride, 1], [padding, 0], ceil_mode)
            real, fake = paddle.pool2d(x, *how), paddle.pool2d(x.to("meta"), *how)
            assert real.shape == fake.shape, (size, kernel, stride, padding)


def test_an_operator_is_defined_once_and_lives_on() -> None:
    schemas = {"twice": "twice(Tensor x) -> Tensor", "unwanted": "unwanted(Tensor x) -> Tensor"}
    first = {"twice": (lambda x: x * 2, lambda x: x.new_empty(x.shape))}
    for kernels in (first, {"twice": (lambda x: x * 3, lambda x: x.new_empty(1))}):
        define_missing("npucompose_missing", schemas, kernels)
        assert torch.ops.npucompose_missing.twice(torch.ones(2)).tolist() == [2.0, 2.0]
        assert torch.ops.npucompose_missing.twice(torch.ones(2, device="meta")).shape == (2,)
    assert not hasattr(torch.ops.npucompose_missing, "unwanted")
