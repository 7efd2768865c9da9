"""What the built-in networks compute, against the same in other words: torch's operators, loops, complex numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from npucompose.models import decoders, layers, small
from npucompose.models.base import generator, inference, seeded
from npucompose.models.decoders import AttentionDecode, MlaProlog, MoeSharedExpert

HIDDEN, HEADS = 12, 3


def made(make: Any) -> Any:
    with seeded(1):
        return inference(make())


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(5, 0))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def spread(parameter: torch.Tensor) -> float:
    return round(parameter.float().std().item(), 1)


# Seeds.


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def states() -> Any:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_seeded_gives_the_generators_back_as_they_were() -> None:
    before = states()
    with seeded(3):
        one = drawn()
    assert states() == before
    with pytest.raises(KeyError), seeded(3):  # noqa: PT012
        assert drawn() == one
        raise KeyError
    assert states() == before


def test_a_seed_is_that_of_every_source() -> None:
    with seeded(3):
        one = drawn()
    with seeded(4):
        assert all(a != b for a, b in zip(drawn(), one, strict=True))
    with seeded(2**32 + 3):
        assert drawn()[1] == one[1], "numpy takes 32 bits of a seed"


def test_each_seed_and_each_step_has_numbers_of_its_own() -> None:
    seeds = [generator(seed, step).initial_seed() for seed in range(4) for step in range(5)]
    assert len(set(seeds)) == 20
    assert generator(0, 0).initial_seed() == 1
    assert generator(2**62, 0).initial_seed() < 2**63


# GPT.


def test_rms_norm_is_torchs_own() -> None:
    norm = layers.RmsNorm(HIDDEN)
    norm.weight.data = values(HIDDEN)
    for scale in (1.0, 1e-3):  # at the second what is added to the square counts
        x = values(2, 5, HIDDEN) * scale
        close(norm(x), functional.rms_norm(x, (HIDDEN,), norm.weight, eps=1e-6))


def test_swiglu_gates_one_product_with_the_other() -> None:
    net = made(lambda: layers.SwiGlu(HIDDEN, 20))
    x = values(3, HIDDEN)
    gate, up = x @ net.gate.weight.t(), x @ net.up.weight.t()
    close(net(x), (gate * torch.sigmoid(gate) * up) @ net.down.weight.t())
    assert (net.gate.bias, net.up.bias, net.down.bias) == (None, None, None)


def by_heads(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(linear(x).split(HIDDEN // HEADS, -1), 1)


def attended(net: layers.Attention, q: Any, k: Any, v: Any, causal: bool) -> torch.Tensor:
    heads = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return net.o(torch.cat(heads.unbind(1), -1))


def test_a_prompt_attends_as_torch_does() -> None:
    net = made(lambda: layers.Attention(HIDDEN, HEADS, 0))
    assert [linear.bias for linear in (net.q, net.k, net.v, net.o)] == [None] * 4
    assert list(net.buffers()) == []
    x = values(2, 5, HIDDEN)
    mask = torch.full((5, 5), layers.HIDDEN_SCORE).triu(1)
    close(net(x, mask), attended(net, by_heads(net.q, x), by_heads(net.k, x), by_heads(net.v, x), causal=True))


def test_a_token_attends_to_the_cache_with_itself_in_its_place() -> None:
    net = made(lambda: layers.Attention(HIDDEN, HEADS, 6))
    keys, cached = net.keys.clone(), net.values.clone()
    assert not torch.equal(keys, cached)
    x = values(1, 1, HIDDEN)
    keys[:, :, 4:5], cached[:, :, 4:5] = by_heads(net.k, x), by_heads(net.v, x)
    mask = (torch.arange(6) > 4) * layers.HIDDEN_SCORE
    got = net(x, mask, torch.tensor([4]))
    close(got, attended(net, by_heads(net.q, x), keys[:, :, :5], cached[:, :, :5], causal=False))
    close(net.keys, keys)
    close(net.values, cached)


def test_a_block_adds_attention_and_network_to_what_comes_in() -> None:
    net = made(lambda: layers.DecoderBlock(HIDDEN, HEADS, 20, 0))
    assert (net.attention.heads, net.attention.cache, net.ffn.gate.out_features) == (HEADS, 0, 20)
    net.ffn_norm.weight.data *= 2
    x, mask = values(1, 4, HIDDEN), torch.full((4, 4), layers.HIDDEN_SCORE).triu(1)
    middle = x + net.attention(net.attention_norm(x), mask)
    close(net(x, mask), middle + net.ffn(net.ffn_norm(middle)))


def test_a_prompt_goes_through_every_block_and_the_norm() -> None:
    net = made(lambda: decoders.GptPrefill(hidden=HIDDEN, layers=3, heads=HEADS, ffn=20, tokens=4).network())
    assert len(net.blocks) == 3
    net.norm.weight.data = values(HIDDEN)
    x = values(2, 4, HIDDEN)
    wanted = x
    for block in net.blocks:
        wanted = block(wanted, torch.full((4, 4), layers.HIDDEN_SCORE).triu(1))
    close(net(x), net.norm(wanted))


def test_a_token_gets_its_place_and_sees_no_later_one() -> None:
    net, other = (
        made(lambda: decoders.GptDecode(hidden=HIDDEN, layers=2, heads=HEADS, ffn=20, cache=6).network())
        for _ in range(2)
    )
    assert net.where.num_embeddings == 6
    net.norm.weight.data = other.norm.weight.data = values(HIDDEN)
    x, position = values(1, 1, HIDDEN), torch.tensor([3])
    wanted = x + other.where.weight[3]
    for block in other.blocks:
        wanted = block(wanted, torch.tensor([0.0] * 4 + [layers.HIDDEN_SCORE] * 2), position)
    close(net(x, position), other.norm(wanted))


def test_a_hidden_score_leaves_nothing_and_makes_no_nan() -> None:
    assert torch.softmax(torch.full((3,), layers.HIDDEN_SCORE) + torch.tensor([0.0, 9.0, 0.0]), -1).isfinite().all()
    assert torch.softmax(torch.tensor([50.0 + layers.HIDDEN_SCORE, -50.0]), -1).tolist() == [0.0, 1.0]


# Latent attention.


def test_halves_are_turned_like_complex_numbers() -> None:
    x, angles = values(2, 4, 6), values(2, 4, 3) * 3
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    close(layers.rotated(x, angles.cos(), angles.sin()), torch.cat((turned.real, turned.imag), -1))


NOPE, ROPE, LATENT = 8, 6, 10


def prolog() -> nn.Module:
    options = {"hidden": HIDDEN, "heads": HEADS, "q_latent": 7, "kv_latent": LATENT, "nope": NOPE, "rope": ROPE}
    return MlaProlog(**options, positions=50).network()


def test_the_angles_are_those_of_rotary_embedding() -> None:
    net = made(prolog)
    frequencies = [10000.0 ** (-2 * k / ROPE) for k in range(ROPE // 2)]
    close(net.angles, torch.outer(torch.arange(50.0), torch.tensor(frequencies)))


def test_queries_and_cache_entries_are_computed_head_by_head() -> None:
    net = made(prolog)
    for norm, width in ((net.norm, HIDDEN), (net.queries.norm, 7), (net.latents.norm, LATENT)):
        norm.weight.data = values(width)
    x, position = values(4, HIDDEN), torch.tensor([0, 3, 3, 49])
    in_latent, turned, latent, key = net(x, position)
    x, angles = net.norm(x), net.angles[position]
    q = net.queries.up(net.queries.norm(net.queries.down(x)))
    for head in range(HEADS):
        mine = q[:, head * (NOPE + ROPE) : (head + 1) * (NOPE + ROPE)]
        close(in_latent[:, head], mine[:, :NOPE] @ net.queries.absorbed[head])
        close(turned[:, head], layers.rotated(mine[:, NOPE:], angles.cos(), angles.sin()))
    entries = net.latents.down(x)
    close(latent, net.latents.norm(entries[:, :LATENT]))
    close(key, layers.rotated(entries[:, LATENT:], angles.cos(), angles.sin()))
    assert [one.bias for one in (net.queries.down, net.queries.up, net.latents.down)] == [None] * 3


# Mixture of experts.


def test_each_token_gets_its_best_experts_by_their_share_and_the_shared_one() -> None:
    net = made(lambda: MoeSharedExpert(hidden=HIDDEN, ffn=20, experts=5, top_k=2, shared_ffn=30).network())
    assert net.router.bias is None
    assert net.shared_expert.gate.out_features == 30
    x = values(6, HIDDEN)
    chances = torch.softmax(x @ net.router.weight.t(), -1)
    wanted = []
    for token, chance in zip(x, chances, strict=True):
        best = sorted(range(5), key=lambda e: -chance[e])[:2]
        total = sum(chance[e] for e in best)
        routed = sum(
            (functional.silu(token @ net.gate[e]) * (token @ net.up[e])) @ net.down[e] * chance[e] / total for e in best
        )
        wanted.append(token + routed + net.shared_expert(token))
    close(net(x), torch.stack(wanted))


# Small networks.


def test_the_small_networks_compute_what_their_names_say() -> None:
    x, y = values(6, 6), values(6, 6) * 2
    close(small.Add().network()(x, y), x + y)
    close(small.MmAbsSub().network()(x), x @ x + x.abs() - x)
    linear = made(lambda: small.LinearScalar(features=6).network())
    close(linear(x, 3), 3 * (x @ linear.weight.t()) + linear.shift)
    mlp = made(lambda: small.Mlp(hidden=6, layers=3).network())
    first, second, third = mlp.layers
    close(mlp(x), third(functional.gelu(second(functional.gelu(first(x))))))
    branches = made(lambda: small.ParallelBranches(size=6, depth=2).network())
    assert (len(branches.left), len(branches.right)) == (2, 2)
    close(branches(x), x @ branches.left[0] @ branches.left[1] + x @ branches.right[0] @ branches.right[1])


def test_a_convolution_s_images_are_halved_three_times() -> None:
    net = made(lambda: small.ConvNhwc(channels=4, classes=5).network())
    x = values(2, 3, 16, 16)
    stem = functional.max_pool2d(functional.conv2d(x, net.stem.weight, net.stem.bias, 2, 1).relu(), 2)
    body = functional.avg_pool2d(functional.conv2d(stem, net.body.weight, net.body.bias, 1, 1).relu(), 2)
    assert (tuple(net.stem.weight.shape), tuple(net.body.weight.shape)) == ((4, 3, 3, 3), (8, 4, 3, 3))
    assert body.shape == (2, 8, 2, 2)
    close(net(x), net.head(body.mean((-1, -2))))


def test_tiny_ops_goes_round_four_operators_and_four_sizes() -> None:
    net = made(lambda: small.TinyOps(count=21).network())
    given = [values(n, n) for n in (8, 16, 32, 64)]
    x = given[0] @ net.weights[0] + net.biases[0]
    x = torch.relu(x) * 0.9
    wanted = [x @ net.weights[0]]
    wanted[0] = wanted[0] + net.biases[0]
    wanted[0] = torch.relu(wanted[0]) * 0.9
    for size in range(1, 4):
        one = torch.relu(given[size] @ net.weights[size] + net.biases[size]) * 0.9
        wanted.append(one)
    wanted[1] = wanted[1] @ net.weights[1]
    for got, one in zip(net(*given), wanted, strict=True):
        close(got, one)


@pytest.mark.parametrize(
    ("make", "spreads"),
    [
        (lambda: small.LinearScalar(features=100).network(), {"weight": 0.1, "shift": 1.0}),
        (lambda: small.ParallelBranches(size=100, depth=2).network(), {"left.0": 0.1, "right.1": 0.1}),
        (lambda: small.TinyOps(count=4).network(), {"weights.0": 0.4, "weights.3": 0.1, "biases.3": 1.0}),
        (
            lambda: MoeSharedExpert(hidden=100, ffn=25, experts=2, top_k=1, shared_ffn=4).network(),
            {"gate": 0.1, "up": 0.1, "down": 0.2},
        ),
        (lambda: layers.Queries(4, 2, 4, 100, 100, 4), {"absorbed": 0.1}),
        (lambda: layers.Attention(100, 2, 100), {"keys": 1.0, "values": 1.0}),
    ],
)
def test_weights_are_drawn_so_that_results_keep_their_size(make: Any, spreads: dict[str, float]) -> None:
    held = made(make).state_dict()
    assert {name: spread(held[name]) for name in spreads} == spreads


# Models of operators that others brought.


def test_attention_is_scaled_and_projected() -> None:
    net = made(lambda: AttentionDecode(op="fia", layout="BNSD", heads=2, kv_heads=2, head_dim=8).network())
    query, key, value = values(2, 2, 1, 8), values(2, 2, 6, 8), values(2, 2, 6, 8) * 2
    wanted = [
        functional.scaled_dot_product_attention(query[n], key[n, :, :length], value[n, :, :length])
        for n, length in enumerate((3, 6))
    ]
    assert net.o_proj.bias is None
    close(net(query, key, value, [3, 6]), net.o_proj(torch.stack(wanted).reshape(2, 1, 16)))
