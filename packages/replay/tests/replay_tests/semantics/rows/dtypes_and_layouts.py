"""Tensors of all kinds: dtypes, strides, overlaps, no elements, no dimensions."""

from __future__ import annotations

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


@row(fast=True, inputs=lambda k: (torch.randn(3, 4).bfloat16(), torch.randn(4, 4).bfloat16()))
def bfloat16(compiled: Compiled):
    return compiled(lambda x, w: (x @ w).softmax(-1) * 2)


@row(inputs=lambda k: (torch.randn(3, 4).half(),))
def float16(compiled: Compiled):
    return compiled(lambda x: (x * 3).sum(1) + x[:, 0])


@row(inputs=lambda k: (torch.randn(3, 4).double(),))
def float64(compiled: Compiled):
    return compiled(lambda x: x.logsumexp(0) - x.std(0))


@row(fast=True, inputs=lambda k: (torch.randn(3, 4, dtype=torch.complex64),))
def complex_numbers(compiled: Compiled):
    return compiled(lambda z: (z * z.conj()).real + z.imag)


@row(inputs=lambda k: (torch.randn(3, 4, dtype=torch.complex64),))
def a_conjugate_view_comes_in(compiled: Compiled):
    f = compiled(lambda z: z * 2 + 1j)
    return lambda z: [f(z), f(z.conj())]


@row(inputs=lambda k: (torch.randn(4, 8),))
def a_fourier_transform(compiled: Compiled):
    return compiled(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=8))


@row(inputs=lambda k: (torch.randint(-9, 9, (3, 4)), torch.randint(0, 2, (3, 4)).bool()))
def integers_and_booleans(compiled: Compiled):
    return compiled(lambda i, b: ((i // 2) ** 2 % 5, ~b & (i > 0), i.masked_fill(b, -1), b.sum()))


@row(inputs=lambda k: (torch.randint(0, 255, (3, 4), dtype=torch.uint8),))
def bytes_that_overflow(compiled: Compiled):
    return compiled(lambda x: (x + 200, x << 1, x.to(torch.int16) * 300))


@row(inputs=lambda k: (torch.randn(3, 4), torch.randint(0, 9, (3, 4)), torch.randn(()).double()))
def promotion_among_dtypes(compiled: Compiled):
    return compiled(lambda x, i, s: (x + i, x * s, i / 2, i * 1.5, x.half() + s))


@row(fast=True, inputs=lambda k: (torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),))
def channels_last(compiled: Compiled):
    return compiled(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).requires_grad_(False))


@row(inputs=lambda k: (torch.randn(2, 3, 5, 5),))
def channels_last_and_contiguous_in_turns(compiled: Compiled):
    f = compiled(nn.Conv2d(3, 4, 3).requires_grad_(False))
    return lambda x: [f(x), f(x.to(memory_format=torch.channels_last)), f(x)]


@row(fast=True)
def an_expanded_input(compiled: Compiled):
    f = compiled(lambda x: x.cumsum(0) * 2)
    return lambda x: [f(x[:1].expand(3, 4)), f(x)]


@row
def overlapping_windows(compiled: Compiled):
    f = compiled(lambda w: (w * w).sum(-1))
    return lambda x: f(x.flatten().unfold(0, 4, 2))


@row(fast=True)
def a_transposed_input(compiled: Compiled):
    f = compiled(lambda x: x @ x.t())
    return lambda x: [f(x), f(x.t()), f(x.t().contiguous())]


@row
def inputs_with_gaps(compiled: Compiled):
    f = compiled(lambda x: x.sigmoid())
    return lambda x: [f(x[:, ::2]), f(x[::2, 1:3]), f(x.flatten()[::3])]


@row
def inputs_at_odd_addresses(compiled: Compiled):
    f = compiled(lambda x: x * 2 + 1)
    return lambda x: [f(x.flatten()[k : k + 5]) for k in (0, 1, 3, 7)]


@row(fast=True, inputs=lambda k: (torch.randn(0, 4),))
def no_elements(compiled: Compiled):
    return compiled(lambda x: (x * 2, x.sum(0), torch.cat([x, torch.ones(1, 4)])))


@row
def no_elements_in_turns(compiled: Compiled):
    f = compiled(lambda x: x.relu().sum(0))
    return lambda x: [f(x), f(x[:0]), f(x)]


@row(fast=True, inputs=lambda k: (torch.randn(()), torch.randn(3)))
def no_dimensions(compiled: Compiled):
    return compiled(lambda s, x: (s * 2, x * s, s.reshape(1), x.sum() + s))


@row(inputs=lambda k: (torch.randn(2, 1, 3, 1, 2, 1),))
def many_dimensions_of_one(compiled: Compiled):
    return compiled(lambda x: x.squeeze().permute(2, 0, 1).unsqueeze(1) * x.sum())


@row(inputs=lambda k: (torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40]),))
def special_numbers(compiled: Compiled):
    return compiled(lambda x: (x + 1, x * 0, torch.nan_to_num(x), x.isnan(), x.sign(), 1 / x))


@row
def a_tensor_of_python_numbers(compiled: Compiled):
    return compiled(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(5))


@row
def as_strided_views(compiled: Compiled):
    return compiled(lambda x: torch.as_strided(x, (2, 2), (1, 4), 1) + 1)


@row
def strides_of_results(compiled: Compiled):
    def f(x: torch.Tensor):
        y = x.t() + 1
        return y, y.contiguous(), y[:, 1:], y.unsqueeze(0).expand(2, 4, 3), torch.empty_like(y).fill_(2)

    return compiled(f)


@row(inputs=lambda k: (torch.randn(3, 4).to_sparse(), torch.randn(4, 2)))
def a_sparse_operand(compiled: Compiled):
    return compiled(lambda s, x: torch.sparse.mm(s, x))


@row(inputs=lambda k: (torch.randn(4, 6),))
def quantised_by_hand(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        q = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return (q.to(torch.int32) @ q.t().to(torch.int32)) * scale

    return compiled(f)


@row(inputs=lambda k: (torch.randn(3, 4).to(torch.float8_e4m3fn),))
def float8(compiled: Compiled):
    return compiled(lambda x: x.float() * 2)
