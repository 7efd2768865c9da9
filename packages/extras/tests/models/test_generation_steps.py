"""Steps of generation of Hugging Face classes: prompts of every kind, positions, the experts of each device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")

import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npucompose.api import checked
from npucompose.models import MODELS
from npucompose.models.base import Generation
from npucompose.schema.experiment import Scenario
from npucompose.targets.null_device import NullDevice
from npucompose_extras.pretrained import generation
from npucompose_extras.pretrained.generation import STATIC, implementation

WITH_EXPERTS: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": {"num_hidden_layers": 1},
    "Qwen2MoeForCausalLM": {"num_hidden_layers": 1},
    "DeepseekV3ForCausalLM": {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    "GptOssForCausalLM": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
}


def built(architecture: str, scenario: Scenario, **options: Any) -> Any:
    transformers: Any = MODELS.get("transformers")
    return transformers(architecture=architecture, scenario=scenario, **options).build(0)


def steps(architecture: str, **options: Any) -> Generation:
    scenario = Scenario(name="generate", batch=2, prompt=5, new_tokens=3)
    return built(architecture, scenario, **options).generations(2, 5, 3)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and not leaf._is_view()]
        self.elements = max([self.elements, *made])
        return result


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_of_a_device_are_those_of_a_cpu(tokens: int) -> None:
    same_experts("MixtralForCausalLM", tokens)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", WITH_EXPERTS)
@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_with_biases_and_other_gates_too(architecture: str, tokens: int) -> None:
    same_experts(architecture, tokens)


def same_experts(architecture: str, tokens: int) -> None:
    scenario = Scenario(name="prefill", prompt=tokens, new_tokens=2)
    logits = []
    for device in ("cpu", "npu"):
        made = built(architecture, scenario, config=WITH_EXPERTS[architecture], device=device)
        assert made.module.cached.inner.config._experts_implementation == implementation(device)
        with torch.no_grad():
            logits.append(made.module(**made.inputs(1))[1])
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize(("more", "gathers"), [({}, False), ({"experts_implementation": "batched_mm"}, True)])
def test_the_experts_of_a_long_prompt_are_not_gathered_for_each_token(more: Any, gathers: bool) -> None:
    config = {"num_hidden_layers": 1, **more}
    made = built("MixtralForCausalLM", Scenario(name="prefill", prompt=64), config=config, device="npu")
    assert (made.module.cached.inner.config._experts_implementation != STATIC) == gathers
    with torch.no_grad(), Largest() as largest:
        made.module(**made.inputs(0))
    pairs, weights = 64 * 2, 64 * 2 * 128
    assert (largest.elements >= pairs * weights) == gathers


def test_a_model_is_told_the_device_that_the_target_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> str:
        model: Any = checked(["model=transformers", "target=null_device"]).model
        return model.device

    assert told() == "cpu"
    capabilities = NullDevice.capabilities
    monkeypatch.setattr(NullDevice, "capabilities", lambda self, mode: evolve(capabilities(self, mode), device="npu"))
    assert told() == "npu"


def test_the_prompt_of_a_class_that_hears_is_what_its_decoder_begins_with() -> None:
    made = steps("WhisperForConditionalGeneration")
    begin = made.prefill.get_buffer("begin")
    assert tuple(begin.shape) == (2, 5)
    assert begin[:, 0].unique().numel() == 1
    assert len(begin[0, 1:].unique()) > 1
    assert (made.first, tuple(made.prompt.shape)) == (5, (2, 16, 64))


def test_behind_an_encoder_of_texts_the_decoder_begins_with_one_token() -> None:
    made = steps("T5ForConditionalGeneration")
    assert (made.first, tuple(made.prompt.shape)) == (1, (2, 5))
    assert tuple(made.prefill.get_buffer("begin").shape) == (2, 1)


def test_behind_an_encoder_too_a_prompt_read_again_gives_the_same_token() -> None:
    made = steps("T5ForConditionalGeneration")
    with torch.no_grad():
        token, logits = made.prefill(made.prompt)
        made.decode(token, torch.tensor([made.first + 1]))
        again, repeated = made.prefill(made.prompt)
    assert torch.equal(token, again)
    assert torch.equal(logits, repeated), "keys of the text before were left, or keys were written behind them"


@pytest.mark.slow
def test_a_decoder_may_have_more_layers_than_its_encoder() -> None:
    made = steps("T5ForConditionalGeneration", config={"num_layers": 1, "num_decoder_layers": 3})
    assert sum(name.startswith("cached.keys") for name, _ in made.decode.named_buffers()) == 6


@pytest.mark.parametrize(
    "architecture", ["GPT2LMHeadModel", pytest.param("WhisperForConditionalGeneration", marks=pytest.mark.slow)]
)
def test_small_sizes_have_the_positions_that_the_longest_text_takes(architecture: str) -> None:
    made = built(architecture, Scenario(name="generate", prompt=(8, 190), new_tokens=10))
    config = made.module.cached.inner.config
    assert 200 in (getattr(config, "n_positions", None), getattr(config, "max_target_positions", None))


@pytest.mark.parametrize(("config", "relative"), [({}, False), ({"relative_attention_num_buckets": 32}, True)])
def test_positions_are_distances_where_a_configuration_has_buckets_of_them(
    config: dict[str, int], relative: bool
) -> None:
    assert generation._relative(SimpleNamespace(**config)) is relative


def test_a_decoder_that_is_moved_takes_its_cache_along() -> None:
    """As `.to(dtype)` and `.to(device)` move buffers: the cache's layers are these, and go on being them."""
    decoder = steps("Qwen2ForCausalLM").decode.cached
    moved: Any = decoder.to(torch.float64)
    assert moved is decoder
    for number, layer in enumerate(decoder.layers):
        assert layer.keys is decoder.get_buffer(f"keys_{number}")
        assert layer.values is decoder.get_buffer(f"values_{number}")
        assert (layer.keys.dtype, layer.cumulative_length is decoder.start) == (torch.float64, True)
    assert decoder.layers


def test_another_prompt_has_the_size_of_the_first_and_words_that_are_not_special() -> None:
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=40))
    inner = SimpleNamespace(config=config)
    words = generation._other(torch.zeros(3, 50, dtype=torch.long), torch.Generator().manual_seed(0), inner)
    assert words.shape == (3, 50)
    assert (int(words.min()), int(words.max())) == (min(generation.FIRST_IDS, 39), 39)
    config.get_text_config = lambda: SimpleNamespace(vocab_size=2)
    assert set(generation._other(words, torch.Generator().manual_seed(0), inner).flatten().tolist()) == {1}
    heard = torch.zeros(2, 8, dtype=torch.float16)
    one, same = (generation._other(heard, torch.Generator().manual_seed(4), inner) for _ in range(2))
    assert (one.shape, one.dtype, torch.equal(one, same)) == ((2, 8), torch.float16, True)
    assert len(one.unique()) > 8
