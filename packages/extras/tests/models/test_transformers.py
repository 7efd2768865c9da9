"""model=transformers: a class of any kind is made from its own configuration alone, with the inputs that it takes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")

import torch

from npucompose.errors import ConfigError
from npucompose.models import MODELS

TEXT = {"input_ids": (1, 16)}
BOTH = {"input_ids": (1, 16), "decoder_input_ids": (1, 16)}
IMAGE = {"pixel_values": (1, 3, 32, 32)}


def built(architecture: str, **options: Any) -> Any:
    transformers: Any = MODELS.get("transformers")
    return transformers(architecture=architecture, **options).build(0)


def config_of(architecture: str, **options: Any) -> Any:
    return built(architecture, **options).module.inner.config


@pytest.mark.parametrize(
    ("architecture", "inputs", "output"),
    [
        pytest.param("GPT2LMHeadModel", TEXT, (1, 16, 512), id="decoder"),
        pytest.param("BertForSequenceClassification", TEXT, (1, 2), id="encoder"),
        pytest.param("T5ForConditionalGeneration", BOTH, (1, 16, 512), id="encoder and decoder"),
        pytest.param("SwinForImageClassification", IMAGE, (1, 2), id="vision, lists in its configuration"),
        pytest.param("CLIPModel", {**TEXT, **IMAGE}, (1, 1), id="text and vision"),
        pytest.param("Wav2Vec2ForCTC", {"input_values": (1, 2000)}, (1, 24, 32), id="speech, a wave form"),
        pytest.param(
            "WhisperForConditionalGeneration",
            {"input_features": (1, 16, 64), "decoder_input_ids": (1, 16)},
            (1, 16, 512),
            id="speech, features of a fixed length",
        ),
        pytest.param("Mamba2ForCausalLM", TEXT, (1, 16, 512), id="state space"),
        pytest.param("DeepseekV3ForCausalLM", TEXT, (1, 16, 512), id="mixture of experts"),
    ],
)
def test_a_class_of_any_kind_runs_as_it_comes(architecture: str, inputs: Any, output: tuple[int, ...]) -> None:
    model = built(architecture)
    given = model.inputs(0)
    assert {name: tuple(tensor.shape) for name, tensor in given.items()} == inputs
    assert list(given) == list(model.module.names)
    with torch.no_grad():
        by_name, by_place = model.module(**given), model.module(*given.values())
    assert tuple(by_name.shape) == output
    assert torch.isfinite(by_name).all()
    assert torch.equal(by_name, by_place)
    assert sum(parameter.numel() for parameter in model.module.parameters()) < 1e6


def test_a_configuration_is_that_of_the_class_and_nothing_of_another() -> None:
    config = config_of("GPT2LMHeadModel", config={"n_embd": 32, "n_layer": 1})
    assert (config.n_embd, config.n_layer, config.n_head) == (32, 1, 4)
    assert not hasattr(config, "num_key_value_heads")
    assert config._attn_implementation == "sdpa"


def test_a_class_may_be_spoken_of_in_the_common_words_too() -> None:
    config = config_of("GPT2LMHeadModel", config={"hidden_size": 32})
    assert (config.n_embd, config.hidden_size) == (32, 32)


def test_a_configuration_inside_another_keeps_what_is_not_named() -> None:
    config = config_of("CLIPModel", config={"vision_config": {"hidden_size": 32}})
    assert (config.vision_config.hidden_size, config.vision_config.num_hidden_layers) == (32, 2)
    assert config.text_config.hidden_size == 64


def test_without_small_sizes_the_class_speaks_for_itself() -> None:
    given = {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 64}
    config = config_of("BertModel", config=given, small=False)
    assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (768, 12, 64)


def test_weights_and_inputs_have_the_dtype_that_was_asked_for() -> None:
    model = built("ViTForImageClassification", dtype="bfloat16")
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}
    assert model.inputs(0)["pixel_values"].dtype == torch.bfloat16
    assert built("BertModel", dtype="bfloat16").inputs(0)["input_ids"].dtype == torch.int64


def test_every_tensor_that_a_class_returns_can_be_asked_for() -> None:
    model = built("T5ForConditionalGeneration", outputs="all")
    with torch.no_grad():
        assert [tuple(one.shape) for one in model.module(**model.inputs(0))] == [(1, 16, 512), (1, 16, 64)]


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("LlamaForCausalLN", {}, r"'LlamaForCausalLN' is not a class .*Did you mean 'LlamaForCausalLM'"),
        ("LlamaForCausalLM", {"config": {"hiden_size": 8}}, r"'hiden_size', which LlamaConfig .*'hidden_size'"),
        ("GPT2Model", {"config": {"n_embdd": 8}}, r"which GPT2Config does not know\. .*Choices: .*n_embd, n_head, .*"),
        ("CLIPModel", {"config": {"text_config": {"n": 1}}}, r"model\.config\.text_config has 'n', which CLIPText"),
        ("LlamaForCausalLM", {"config": {"hidden_size": "wide"}}, "LlamaForCausalLM"),
        ("LlamaForCausalLM", {"config_class": "LlamaKonfig"}, "model.config_class 'LlamaKonfig' is not a class"),
        ("AutoModel", {}, "'AutoModel' is no PreTrainedModel of transformers .*, or one that picks its class itself"),
        ("TrainingArguments", {}, "'TrainingArguments' is no PreTrainedModel"),
        ("LlamaConfig", {}, "'LlamaConfig' is no PreTrainedModel"),
        ("LlamaForCausalLM", {"config_class": "TrainingArguments"}, "'TrainingArguments' is no PreTrainedConfig"),
        ("LlamaForCausalLM", {"config_class": "LlamaModel"}, "'LlamaModel' is no PreTrainedConfig"),
        ("PatchTSTModel", {}, r"needs other inputs than are made here \(past_values\); use model=python"),
    ],
)
def test_what_transformers_cannot_make_is_refused(architecture: str, options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(architecture, **options)
