"""Models by name. A new model is one file, one line here, one YAML and one test. Loads no torch and no model."""

from __future__ import annotations

from npucompose.models.base import Built, Inputs, Model
from npucompose.registry import Registry

MODELS: Registry[Model] = Registry(
    kind="model",
    base=Model,
    group="npucompose.models",
    built_in=(
        ("add", "npucompose.models.add:Add"),
        ("mm_abs_sub", "npucompose.models.mm_abs_sub:MmAbsSub"),
        ("linear_scalar", "npucompose.models.linear_scalar:LinearScalar"),
        ("attention_decode", "npucompose.models.attention_decode:AttentionDecode"),
        ("mlp", "npucompose.models.mlp:Mlp"),
        ("tiny_ops", "npucompose.models.tiny_ops:TinyOps"),
        ("gpt_decode", "npucompose.models.gpt_decode:GptDecode"),
        ("gpt_prefill", "npucompose.models.gpt_prefill:GptPrefill"),
        ("moe_shared_expert", "npucompose.models.moe_shared_expert:MoeSharedExpert"),
        ("mla_prolog", "npucompose.models.mla_prolog:MlaProlog"),
        ("parallel_branches", "npucompose.models.parallel_branches:ParallelBranches"),
        ("conv_nhwc", "npucompose.models.conv_nhwc:ConvNhwc"),
        ("paddle", "npucompose.models.paddle:Paddle"),
        ("transformers", "npucompose.models.transformers:Transformers"),
        ("minilm", "npucompose.models.minilm:MiniLm"),
        ("python", "npucompose.models.python:Python"),
    ),
)

__all__ = ["MODELS", "Built", "Inputs", "Model"]
