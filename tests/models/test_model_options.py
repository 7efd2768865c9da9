"""Options reach the network, each its own place."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.models import MODELS, Built


def model(name: str, **options: Any) -> Built:
    return MODELS.get(name)(**options).build(0)


def shapes(built: Built) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in built.inputs(0).items() if isinstance(x, torch.Tensor)}


def sizes(built: Built) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in built.module.state_dict().items()}


def test_the_sizes_of_each_model_are_its_options() -> None:
    assert shapes(model("add", size=3)) == {"x": (3, 3), "y": (3, 3)}
    assert shapes(model("mm_abs_sub", size=3)) == {"x": (3, 3)}
    linear = model("linear_scalar", batch=2, features=3, times=4)
    assert (shapes(linear), sizes(linear)["weight"]) == ({"x": (2, 3)}, (3, 3))
    mlp = model("mlp", batch=2, hidden=3, layers=4)
    assert (shapes(mlp), len(sizes(mlp))) == ({"x": (2, 3)}, 8)
    assert shapes(model("tiny_ops", count=1)) == {f"x{n}": (n, n) for n in (8, 16, 32, 64)}
    branches = model("parallel_branches", size=3, depth=2)
    assert (shapes(branches), len(sizes(branches))) == ({"x": (3, 3)}, 4)
    conv = model("conv_nhwc", batch=2, size=16, channels=3, classes=4)
    assert (shapes(conv), sizes(conv)["head.weight"]) == ({"x": (2, 3, 16, 16)}, (4, 6))
    resnet = model("resnet18", batch=2, size=32, channels=3, classes=4)
    assert (shapes(resnet), sizes(resnet)["head.weight"]) == ({"x": (2, 3, 32, 32)}, (4, 24))
    unet = model("unet", batch=2, size=8, channels=3, depth=2, classes=4)
    assert (shapes(unet), sizes(unet)["head.weight"]) == ({"x": (2, 3, 8, 8)}, (4, 3, 1, 1))
    assert sizes(unet)["down.2.second.weight"] == (12, 12, 3, 3)
    prefill = model("gpt_prefill", hidden=8, layers=2, heads=2, ffn=6, batch=3, tokens=5)
    assert shapes(prefill) == {"x": (3, 5, 8)}
    assert sizes(prefill)["mask"] == (5, 5)
    assert sizes(prefill)["blocks.1.ffn.down.weight"] == (8, 6)
    decode = model("gpt_decode", hidden=8, layers=2, heads=4, ffn=6, cache=9, start=2, steps=3)
    assert (shapes(decode), decode.steps) == ({"x": (1, 1, 8), "position": (1,)}, 3)
    assert sizes(decode)["blocks.1.attention.keys"] == (1, 4, 9, 2)
    assert sizes(decode)["blocks.0.ffn.up.weight"] == (6, 8)
    experts = model("moe_shared_expert", tokens=2, hidden=3, ffn=4, experts=5, top_k=1, shared_ffn=6)
    assert (shapes(experts), sizes(experts)["down"]) == ({"x": (2, 3)}, (5, 4, 3))
    assert sizes(experts)["shared_expert.up.weight"] == (6, 3)
    prolog = model("mla_prolog", tokens=2, hidden=3, heads=4, q_latent=5, kv_latent=6, nope=7, rope=8, positions=9)
    assert shapes(prolog) == {"x": (2, 3), "position": (2,)}
    assert {name: sizes(prolog)[name] for name in ("angles", "queries.up.weight", "queries.absorbed")} == {
        "angles": (9, 4), "queries.up.weight": (60, 5), "queries.absorbed": (4, 7, 6),
    }  # fmt: skip
    assert sizes(prolog)["latents.down.weight"] == (14, 3)


def test_steps_count_on_where_a_model_says_so() -> None:
    assert [model("linear_scalar", times=4, vary=True).inputs(n)["times"] for n in range(3)] == [4, 5, 6]
    assert [model("linear_scalar", times=4).inputs(n)["times"] for n in range(3)] == [4, 4, 4]
    decode = model("gpt_decode", hidden=8, layers=1, heads=2, ffn=4, cache=4, start=1, steps=3)
    assert [decode.inputs(n)["position"].tolist() for n in range(5)] == [[1], [2], [3], [0], [1]]
    places = model("mla_prolog", positions=3, tokens=60).inputs(0)["position"]
    assert set(places.tolist()) == {0, 1, 2}


def test_limits_that_are_just_kept_are_taken() -> None:
    model("gpt_decode", hidden=8, layers=1, heads=2, ffn=4, cache=5, start=2, steps=3)
    model("moe_shared_expert", experts=2, top_k=2)
    model("attention_decode", length=127, batch=2, cache=128)
    MODELS.get("paddle")(operator="pool2d", pooling_type="both").check()
    MODELS.get("paddle")(operator="pool2d_grad", pooling_type="avg").check()
    for name, options, words in (
        ("mla_prolog", {"rope": 3}, r"model\.rope=3 must be even"),
        (
            "paddle",
            {"operator": "pool2d_grad", "pooling_type": "both"},
            "pooling_type=both is for model.operator=pool2d",
        ),
        ("gpt_decode", {"cache": 5, "start": 3, "steps": 3}, "end behind the cache of 5"),
    ):
        with pytest.raises(ConfigError, match=words):
            MODELS.get(name)(**options).check()


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_attention_s_inputs_lie_as_their_layout_says(layout: str) -> None:
    built = model(
        "attention_decode", layout=layout, batch=2, heads=4, kv_heads=2, head_dim=3, cache=9, length=4, grow=2
    )
    wanted = {
        "BNSD": {"query": (2, 4, 1, 3), "key": (2, 2, 9, 3), "value": (2, 2, 9, 3)},
        "BSND": {"query": (2, 1, 4, 3), "key": (2, 9, 2, 3), "value": (2, 9, 2, 3)},
        "BSH": {"query": (2, 1, 12), "key": (2, 9, 6), "value": (2, 9, 6)},
    }[layout]
    assert shapes(built) == wanted
    assert all(x.is_contiguous() for x in built.inputs(0).values() if isinstance(x, torch.Tensor))
    assert [built.inputs(n)["actual_seq_lengths_kv"] for n in (0, 1, 3)] == [[4, 5], [6, 7], [9, 9]]
    narrow = model("attention_decode", layout=layout, dtype="bfloat16")
    assert {t.dtype for t in (*narrow.module.parameters(), narrow.inputs(0)["key"])} == {torch.bfloat16}


def test_each_sequence_writes_its_new_token_into_the_last_of_its_places() -> None:
    inputs = model("paged_decode", batch=3, page=4, length=4, grow=1).inputs(2)
    lengths, table = inputs["actual_seq_lengths_kv"], inputs["block_table"].tolist()
    assert lengths == [6, 7, 8]
    last = [table[n][(length - 1) // 4] * 4 + (length - 1) % 4 for n, length in enumerate(lengths)]
    assert inputs["slots"].tolist() == last


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("relu_grad", {"out": (2, 6), "dout": (2, 6)}),
        ("nll_loss", {"x": (2, 5), "label": (2,)}),
        ("pool2d", {"x": (2, 6, 6, 3)}),
        ("pool2d_grad", {"x": (2, 6, 6, 3), "out_grad": (2, 3, 3, 3)}),
    ],
)
def test_paddle_s_operators_get_what_they_take(operator: Any, wanted: Any) -> None:
    built = model("paddle", operator=operator, batch=2, classes=5, size=6, channels=3)
    assert shapes(built) == wanted
    given = built.inputs(0)
    if operator == "nll_loss":
        assert given["x"].dtype == torch.float64
        total = given["x"].exp().sum(1)
        torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64), rtol=1e-4, atol=1e-5)
    if operator == "relu_grad":
        assert given["out"].min() == 0
        assert given["dout"].min() < 0
    first = shapes(model("paddle", operator=operator, batch=2, size=6, channels=3, data_format="NCHW"))
    if "pool" in operator:
        assert first["x"] == (2, 3, 6, 6)


LEAST = {
    "linear_scalar.times": 2, "attention_decode.grow": 0, "gpt_decode.start": 0, "mla_prolog.rope": 2,
    "paged_decode.grow": 0, "paged_decode.head_dim": 2, "paged_prefill.cached": 0, "paged_prefill.head_dim": 2,
    "mla_decode.rope": 2, "sampling_tail.vocabulary": 2, "paddle.classes": 2, "paddle.size": 4,
    "conv_nhwc.size": 8, "unet.size": 2,
}  # fmt: skip
"""{option: the smallest number that it takes}, where that is not 1."""


def test_a_number_is_as_small_as_the_model_can_take() -> None:
    for name in MODELS.names():
        made = MODELS.get(name)
        for option in attrs.fields(made):
            if type(option.default) is not int:
                continue
            least = LEAST.get(f"{name}.{option.name}", 1)
            made(**{option.name: least})
            with pytest.raises(ValueError, match="must be"):
                made(**{option.name: least - 1})
