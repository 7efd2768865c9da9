"""Layers of networks as torch has them: convolutions, attention, recurrent ones, embeddings, losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from replay_tests.semantics.rows import Compiled, row


def quiet(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def image(k: int) -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 6, 6),)


def sequence(k: int) -> tuple[torch.Tensor]:
    return (torch.randn(2, 5, 8),)


@row
def einsum(compiled: Compiled):
    return compiled(lambda x, y: (torch.einsum("ij,kj->ik", x, y), torch.einsum("ij,ij->", x, y)))


@row(fast=True, inputs=image)
def a_convolutional_network(compiled: Compiled):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return compiled(quiet(net).eval())


@row(inputs=image)
def a_convolutional_network_in_training(compiled: Compiled):
    net = quiet(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
    return compiled(net), net


@row(inputs=image)
def transposed_grouped_and_dilated_convolutions(compiled: Compiled):
    net = nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 2, dilation=2)
    )
    return compiled(quiet(net))


@row(inputs=image)
def pooling_and_resizing(compiled: Compiled):
    def f(x: torch.Tensor):
        up = functional.interpolate(x, scale_factor=2, mode="bilinear")
        down = functional.avg_pool2d(x, 2), functional.adaptive_avg_pool2d(x, 1)
        return up, down, functional.pad(x, (1, 1), "reflect")

    return compiled(f)


@row(fast=True, inputs=sequence)
def attention(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(2, 5, 2, 4).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(2, 5, 8)

    return compiled(f)


@row(inputs=sequence)
def attention_with_a_mask(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(2, 5, 2, 4).transpose(1, 2)
        mask = torch.ones(5, 5).tril().bool()
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    return compiled(f)


@row(inputs=sequence)
def multi_head_attention(compiled: Compiled):
    module = quiet(nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    return compiled(lambda x: module(x, x, x))


@row(inputs=sequence)
def a_transformer_encoder_layer(compiled: Compiled):
    return compiled(quiet(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval())


@row(inputs=sequence)
def a_transformer_layer_in_training(compiled: Compiled):
    return compiled(quiet(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))


@row(inputs=sequence)
def an_lstm(compiled: Compiled):
    return compiled(quiet(nn.LSTM(8, 4, batch_first=True)))


@row(inputs=sequence)
def a_gru_that_carries_its_state(compiled: Compiled):
    f = compiled(quiet(nn.GRU(8, 4, batch_first=True)))
    state = {"h": torch.zeros(1, 2, 4)}

    def call(x: torch.Tensor) -> torch.Tensor:
        y, state["h"] = f(x, state["h"])
        return y

    return call, state


@row
def a_recurrent_cell_in_a_loop(compiled: Compiled):
    cell = quiet(nn.LSTMCell(4, 4))
    f = compiled(cell)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        h = c = torch.zeros(3, 4)
        found = []
        for _ in range(4):
            h, c = f(x, (h, c))
            found.append(h)
        return found

    return call


@row(fast=True, inputs=lambda k: (torch.randint(0, 10, (3, 5)),))
def an_embedding(compiled: Compiled):
    return compiled(quiet(nn.Embedding(10, 4, padding_idx=0)))


@row(inputs=lambda k: (torch.randint(0, 10, (7,)), torch.tensor([0, 2, 2, 5])))
def an_embedding_bag(compiled: Compiled):
    return compiled(quiet(nn.EmbeddingBag(10, 4, mode="mean")))


@row(inputs=lambda k: (torch.randn(5, 4), torch.randint(0, 4, (5,))))
def losses(compiled: Compiled):
    def f(x: torch.Tensor, y: torch.Tensor):
        return functional.cross_entropy(x, y), functional.mse_loss(x, x.roll(1, 0)), functional.nll_loss(x, y)

    return compiled(f)


@row(inputs=sequence)
def normalisations(compiled: Compiled):
    def f(x: torch.Tensor):
        return (
            functional.layer_norm(x, (8,)),
            functional.rms_norm(x, (8,)),
            functional.normalize(x, dim=-1),
            functional.instance_norm(x),
        )

    return compiled(f)


@row
def activations(compiled: Compiled):
    names = ("gelu", "silu", "elu", "hardswish", "leaky_relu", "softplus", "mish", "glu", "logsigmoid")
    return compiled(lambda x: [getattr(functional, name)(x) for name in names])


@row(inputs=lambda k: (torch.randn(3, 4, 4) + 4 * torch.eye(4),))
def linear_algebra(compiled: Compiled):
    return compiled(lambda x: (torch.linalg.inv(x), torch.linalg.det(x), torch.linalg.solve(x, x[..., :1]), x @ x.mT))


@row(inputs=sequence)
def rotary_positions(compiled: Compiled):
    def f(x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(5)[:, None] / 10 ** (torch.arange(4) / 4)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    return compiled(f)


@row(inputs=lambda k: (torch.randn(1, 4), torch.tensor([k % 6])))
def a_decoder_step_with_a_cache(compiled: Compiled):
    class Step(nn.Module):
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.q, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("cache", torch.zeros(6, 4))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.cache.index_copy_(0, at, x)
            seen = torch.arange(6) <= at
            score = (self.q(x) @ self.cache.t()).masked_fill(~seen, -1e9).softmax(-1)
            return self.out(score @ self.cache)

    module = quiet(Step())
    return compiled(module), module


@row(inputs=lambda k: (torch.randn(6, 4),))
def a_mixture_of_experts(compiled: Compiled):
    experts = quiet(nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
    gate = quiet(nn.Linear(4, 3))

    def f(x: torch.Tensor) -> torch.Tensor:
        weight, which = gate(x).softmax(-1).topk(1, -1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(experts):
            chosen = torch.where(which[:, 0] == k)[0]
            out.index_add_(0, chosen, expert(x[chosen]) * weight[chosen])
        return out

    return compiled(f)
