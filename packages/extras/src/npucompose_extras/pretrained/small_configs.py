"""Keyword arguments of a Hugging Face configuration class: small sizes under what a person said. Loads no torch.

What a configuration class has is read from its signature, so that a class that is not named here is made small too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from npucompose.errors import ConfigError, did_you_mean, listed

HIDDEN, HEADS, LAYERS, FFN, PLACES = 64, 4, 2, 128, 128
POSITIONS = ("max_target_positions", "max_position_embeddings", "n_positions")
"""Keys that bound the positions of a decoder, that of the decoder alone first."""
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "lru_width"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), FFN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), HIDDEN),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "first_k_dense_replace", "n_group", "topk_group"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "query_pre_attn_scalar"), HIDDEN // HEADS),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "time_step_rank"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "embedding_size"), 32),
    **dict.fromkeys(POSITIONS, PLACES),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), 512),
    **dict.fromkeys(("image_size", "max_source_positions", "max_length"), 32),
    **dict.fromkeys(("patch_size", "num_codevectors_per_group"), 8),
    **dict.fromkeys(("num_mel_bins", "input_feat_per_channel", "num_conv_pos_embeddings", "conv_channels"), 16),
    **dict.fromkeys(("projection_dim", "pooler_output_size", "decoder_hidden_size", "classifier_proj_size"), HIDDEN),
}
"""{key: at most so much}, for every class that has the key with a larger default."""
_WAVES = {"conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4)}
_WAVES |= {"num_feat_extract_layers": 3, "num_conv_pos_embedding_groups": 4}
CLASSES: dict[str, dict[str, Any]] = {
    "LlamaConfig": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 256,
    },
    **dict.fromkeys(("Wav2Vec2Config", "HubertConfig", "WavLMConfig", "UniSpeechConfig", "SEWConfig"), _WAVES),
    "Mamba2Config": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 8},
    "SwinConfig": {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4, "patch_size": 4},
    "ConvNextConfig": {"hidden_sizes": (16, 32), "depths": (1, 1), "num_stages": 2, "patch_size": 4},
    "ConvNextV2Config": {"hidden_sizes": (16, 32), "depths": (1, 1), "num_stages": 2, "patch_size": 4},
    "ResNetConfig": {"embedding_size": 16, "hidden_sizes": (16, 32), "depths": (1, 1)},
    "SegformerConfig": {"hidden_sizes": (16, 16, 32, 32), "depths": (1, 1, 1, 1), "num_attention_heads": (1, 2, 2, 4)},
    "RecurrentGemmaConfig": {"num_hidden_layers": 3, "num_key_value_heads": 1, "attention_window_size": 32},
    "DeepseekV3Config": {"num_key_value_heads": HEADS},
    "DebertaV2Config": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}
"""{name of a configuration class: its own small sizes}, where those of SIZES do not fit together or are lists."""
OF_EVERY_CLASS = ("attn_implementation", "experts_implementation")
"""Keys that configuration classes take beside their own."""


def arguments(config_class: type[Any], given: Mapping[str, Any], small: bool, positions: int = 0) -> dict[str, Any]:
    """What `config_class` is called with: `given` under its own names, over small sizes where `small` says so.

    `arguments(GPT2Config, {"hidden_size": 32}, True)` has n_embd 32 (GPT-2's name for it) and two layers, and no fewer
    `positions` than are asked for. A key that the class does not know is a ConfigError with the keys that it knows; the
    same for configurations inside it.
    """
    said = _own_names(config_class, given, "model.config")
    if not small:
        return said
    made = _small(config_class)
    made |= {name: max(made[name], positions) for name in POSITIONS if name in made}
    for name, value in said.items():
        inner = made.get(name)
        made[name] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    return {**made, **_ids_inside(config_class, made)}


def _small(config_class: type[Any]) -> dict[str, Any]:
    made = {}
    for name, default in _defaults(config_class).items():
        most = SIZES.get(name)
        if most is not None and isinstance(default, int) and default > most:
            made[name] = most
    made |= CLASSES.get(config_class.__name__, {})
    for name, inner in _inner(config_class):
        made[name] = {**_small(inner), **_ids_inside(inner, _small(inner))}
    return made


def _ids_inside(config_class: type[Any], made: Mapping[str, Any]) -> dict[str, int]:
    """Special tokens that a smaller vocabulary does not have become its first ones."""
    defaults = _defaults(config_class)
    vocabulary = made.get("vocab_size", defaults.get("vocab_size"))
    ids = [name for name in defaults if name.endswith("_token_id") and name not in made]
    if not isinstance(vocabulary, int):
        return {}
    return {n: at % 3 for at, n in enumerate(ids) if isinstance(defaults[n], int) and defaults[n] >= vocabulary}


def _own_names(config_class: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`given` by the class's own names; ConfigError for what it does not know."""
    aliases: Mapping[str, str] = getattr(config_class, "attribute_map", {})
    inner, keys = dict(_inner(config_class)), keys_of(config_class)
    said: dict[str, Any] = {}
    for name, value in given.items():
        if name not in keys and name not in aliases and name not in OF_EVERY_CLASS:
            hint = did_you_mean(name, (*keys, *aliases))
            raise ConfigError(
                f"{where} has '{name}', which {config_class.__name__} does not know. {hint}Choices: {listed(keys)}."
            )
        name = aliases.get(name, name)
        deeper = name in inner and isinstance(value, Mapping)
        said[name] = _own_names(inner[name], value, f"{where}.{name}") if deeper else value
    return said


def keys_of(config_class: type[Any]) -> tuple[str, ...]:
    """The keys that a configuration class knows, its own first, in alphabetical order."""
    common = set(_defaults(_base(config_class)))
    own = set(_defaults(config_class)) | {name for name in vars(config_class()) if not name.startswith("_")}
    return (*sorted(own - common), *sorted(own & common))


def _base(config_class: type[Any]) -> type[Any]:
    """PretrainedConfig, under whatever name: the eldest ancestor that says what a model type is."""
    return [cls for cls in config_class.__mro__ if "model_type" in vars(cls)][-1]


def _defaults(config_class: type[Any]) -> dict[str, Any]:
    parameters = inspect.signature(config_class).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL}


def _inner(config_class: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Configurations inside one, of the classes that it names; one that can be of any class is not among them."""
    for name, inner in (getattr(config_class, "sub_configs", None) or {}).items():
        if "model_type" in vars(inner):
            yield name, inner
