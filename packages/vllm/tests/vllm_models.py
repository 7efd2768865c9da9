"""Small decoders of seven classes with random weights, as a checkpoint that vLLM reads.

vLLM's own random weights (`load_format: dummy`, within a thousandth of zero) leave attention and experts without a
say: a text repeats its last token, whatever a broken layer computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GAIN, SPREAD, SMALL = 1.5, 0.1, 0.02
"""Of products, of norms and biases, of embeddings: what a layer adds counts for more than the last token."""
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
LATENT: dict[str, Any] = {"num_key_value_heads": 8, "q_lora_rank": 96, "qk_nope_head_dim": 32, "v_head_dim": 32}
"""Queries, keys and values come of a few numbers, and queries and keys are put together of two parts. vLLM keeps such
numbers in its cache on a processor where they are 512 and 64."""
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
    "deepseek_v2": {
        "architectures": ["DeepseekV2ForCausalLM"],
        **ROTARY,
        **LATENT,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "head_dim": 64,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "minicpm3": {
        "architectures": ["MiniCPM3ForCausalLM"],
        **ROTARY,
        **LATENT,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 16,
        "scale_emb": 1,
        "scale_depth": 1.4,
        "dim_model_base": 128,
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

BY_HUGGING_FACE = ("deepseek_v2", "minicpm3")
"""Whose tokens are those of transformers, not of vLLM's `enforce_eager`: for an attention with a latent cache that is
wrong on a processor from the first token on (vLLM 0.32)."""


def written(name: str, folder: Path) -> Path:
    """A folder that vLLM takes for a model, as long as it asks for no tokenizer; the same bytes wherever it lies."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "model.safetensors").exists():
        _weights(name, place)
    (place / "config.json").write_text(json.dumps({"model_type": name, **MODELS[name]}))
    return place


def _weights(name: str, place: Path) -> None:
    """Values that a layer hands on about as large as it got them, of a seed; with them goes transformers' own form of
    the configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **MODELS[name]))
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            value = torch.randn(weight.shape, generator=drawn)
            if any(part in path for part in ("embed", "wte", "wpe")):
                weight.copy_(value * SMALL)
            elif weight.dim() > 1:
                weight.copy_(value * GAIN / weight.shape[-1] ** 0.5)
            else:
                weight.mul_(1 + SPREAD * value) if "norm" in path or "ln_" in path else weight.copy_(SPREAD * value)
    model.save_pretrained(place)
