"""Configurations of small decoders of five classes, which vLLM fills with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
    "tie_word_embeddings": False,
}
ROTARY = {
    **SIZES,
    **COMMON,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
MODELS: Mapping[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], **ROTARY},
    "llama": {"architectures": ["LlamaForCausalLM"], **ROTARY},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        **ROTARY,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        **ROTARY,
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 512,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        **COMMON,
        "n_embd": 256,
        "n_layer": 4,
        "n_head": 8,
        "n_positions": 1024,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
}


def written(name: str, folder: Path) -> Path:
    """A folder that vLLM takes for a model, as long as it asks for no weights and no tokenizer."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": name, **MODELS[name]}))
    return place
