"""The fused reference kernels of the NPU against the same formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose.ops.definitions import UnsupportedArgument

npu = torch.ops.npu
DTYPES = [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float64, 1e-14)]


def some(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def near(got: torch.Tensor, wanted: torch.Tensor, rtol: float) -> None:
    torch.testing.assert_close(got.double(), wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_rms_norm(dtype: torch.dtype, rtol: float) -> None:
    x, gamma = some(3, 5, 64, dtype=dtype), some(64, dtype=dtype)
    y, rstd = npu.npu_rms_norm(x, gamma, 1e-5)
    wanted = 1 / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    near(y, x.double() * wanted * gamma.double(), rtol)
    near(rstd, wanted, max(rtol, 1e-6) if dtype != torch.float64 else rtol)
    assert (y.dtype, rstd.shape) == (dtype, (3, 5, 1))


@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_add_rms_norm_gives_the_sum_too(dtype: torch.dtype, rtol: float) -> None:
    x, y, gamma = some(3, 64, dtype=dtype), some(4, 64, dtype=dtype)[:3], some(64, dtype=dtype)
    normed, rstd, total = npu.npu_add_rms_norm(x, y, gamma)
    assert torch.equal(total, x + y)
    again, same = npu.npu_rms_norm(total, gamma)
    assert torch.equal(normed, again)
    assert torch.equal(rstd, same)
    near(total, x.double() + y.double(), rtol)


@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_swiglu(dtype: torch.dtype, rtol: float, dim: int) -> None:
    x = some(6, 32, dtype=dtype)
    gate, up = x.double().chunk(2, dim)
    near(npu.npu_swiglu(x, dim), gate / (1 + torch.exp(-gate)) * up, rtol)


@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_rotary_mul_turns_pairs_by_an_angle(dtype: torch.dtype, rtol: float, mode: str) -> None:
    x, angle = some(2, 3, 5, 16, dtype=dtype), torch.linspace(0, 3, 8, dtype=torch.float64)
    both = torch.cat([angle, angle]) if mode == "half" else angle.repeat_interleave(2)
    cos, sin = both.cos().to(dtype).expand(1, 1, 5, 16), both.sin().to(dtype).expand(1, 1, 5, 16)
    got = npu.npu_rotary_mul(x, cos, sin, mode)
    wide = x.double()
    a, b = wide.chunk(2, -1) if mode == "half" else (wide[..., ::2], wide[..., 1::2])
    c, s = angle.cos().to(dtype).double(), angle.sin().to(dtype).double()
    first, second = a * c - b * s, b * c + a * s
    wanted = torch.cat([first, second], -1) if mode == "half" else torch.stack([first, second], -1).flatten(-2)
    near(got, wanted, rtol)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_the_reference_kernel_does_not_take_is_said_when_it_is_traced_too(device: str) -> None:
    x = torch.ones(1, 1, 2, 4, device=device)
    with pytest.raises(UnsupportedArgument, match=r"npu_rotary_mul: 'rotary_mode' is 'quarter'\. Possible: half"):
        npu.npu_rotary_mul(x, x, x, "quarter")
    with pytest.raises(UnsupportedArgument, match=r"npu_rotary_mul: 'rotate' is not supported here\. Leave it at None"):
        npu.npu_rotary_mul(x, x, x, "half", x)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("npu_rms_norm", [(2, 3, 8), (8,)]),
        ("npu_add_rms_norm", [(2, 3, 8), (2, 3, 8), (8,)]),
        ("npu_swiglu", [(2, 3, 8)]),
        ("npu_rotary_mul", [(2, 3, 5, 8), (1, 1, 5, 8), (1, 1, 5, 8)]),
    ],
)
def test_fake_tensors_have_the_form_of_real_ones(name: str, arguments: list[Any]) -> None:
    operator = getattr(npu, name).default
    tensors = [torch.randn(shape) for shape in arguments]
    torch.library.opcheck(operator, tuple(tensors), test_utils=("test_schema", "test_faketensor"))


def test_without_an_epsilon_it_is_a_millionth() -> None:
    x, gamma = some(3, 8, dtype=torch.float64) * 1e-3, some(8, dtype=torch.float64)
    wanted = 1 / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    near(npu.npu_rms_norm(x, gamma)[1], wanted, 1e-12)
    near(npu.npu_add_rms_norm(x / 2, x / 2, gamma)[1], wanted, 1e-12)
    near(npu.npu_add_rms_norm(x, x, gamma, 0.5)[0], npu.npu_rms_norm(x * 2, gamma, 0.5)[0], 1e-12)


def test_a_norm_is_over_as_many_dimensions_as_its_weight_has() -> None:
    x, gamma = some(2, 3, 4, dtype=torch.float64), some(3, 4, dtype=torch.float64)
    y, rstd = npu.npu_rms_norm(x, gamma, 1e-5)
    wanted = 1 / (x.square().mean((1, 2), keepdim=True) + 1e-5).sqrt()
    near(rstd, wanted, 1e-12)
    near(y, x * wanted * gamma, 1e-12)


def test_what_is_not_said_is_the_last_dimension_and_halves() -> None:
    x = some(2, 6, dtype=torch.float64)
    assert torch.equal(npu.npu_swiglu(x), npu.npu_swiglu(x, 1))
    angles = some(1, 6, dtype=torch.float64)
    assert torch.equal(npu.npu_rotary_mul(x, angles, angles), npu.npu_rotary_mul(x, angles, angles, "half"))


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in DTYPES])
@pytest.mark.parametrize(
    ("name", "shapes", "more"),
    [
        ("npu_rms_norm", [(2, 3, 4), (4,)], ()),
        ("npu_rms_norm", [(2, 3, 4), (3, 4)], (0.5,)),
        ("npu_add_rms_norm", [(2, 3, 4), (2, 3, 4), (4,)], ()),
        ("npu_swiglu", [(2, 6, 4)], ()),
        ("npu_swiglu", [(2, 6, 4)], (1,)),
        ("npu_rotary_mul", [(2, 3, 5, 8), (1, 1, 5, 8), (1, 1, 5, 8)], ("interleave",)),
    ],
)
def test_forms_are_told_without_values(name: str, shapes: list[Any], more: Any, dtype: torch.dtype) -> None:
    """Statistics are float32, or float64 where all is."""
    tensors = [some(*shape, dtype=dtype) for shape in shapes]
    call = getattr(npu, name)
    found = [call(*tensors, *more), call(*(t.to("meta") for t in tensors), *more)]
    real, fake = ([(t.shape, t.dtype, t.stride()) for t in (r if isinstance(r, tuple) else (r,))] for r in found)
    assert real == fake
    if "norm" in name:
        assert real[1][1] == (torch.float64 if dtype == torch.float64 else torch.float32)
