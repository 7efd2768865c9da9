"""Models by name: classes of options that make a module and its inputs, and how inputs become a call.

What needs another package than torch is an extension, and nothing here knows a device. A new model is a class, one line
below, one YAML and one test; importing this loads no torch and no model.
"""

from __future__ import annotations

from npucompose.models.base import Built, Inputs, Model
from npucompose.registry import Registry

MODELS: Registry[type[Model]] = Registry(
    kind="model",
    base=Model,
    group="npucompose.models",
    built_in=(
        ("add", "npucompose.models.small:Add"),
        ("mm_abs_sub", "npucompose.models.small:MmAbsSub"),
        ("linear_scalar", "npucompose.models.small:LinearScalar"),
        ("attention_decode", "npucompose.models.decoders:AttentionDecode"),
        ("paged_decode", "npucompose.models.paged:PagedDecode"),
        ("paged_prefill", "npucompose.models.paged:PagedPrefill"),
        ("mla_decode", "npucompose.models.paged:MlaDecode"),
        ("moe_grouped", "npucompose.models.served:MoeGrouped"),
        ("w8a8_linear", "npucompose.models.served:W8a8Linear"),
        ("sampling_tail", "npucompose.models.served:SamplingTail"),
        ("mlp", "npucompose.models.small:Mlp"),
        ("tiny_ops", "npucompose.models.small:TinyOps"),
        ("gpt_decode", "npucompose.models.decoders:GptDecode"),
        ("gpt_prefill", "npucompose.models.decoders:GptPrefill"),
        ("moe_shared_expert", "npucompose.models.decoders:MoeSharedExpert"),
        ("mla_prolog", "npucompose.models.decoders:MlaProlog"),
        ("parallel_branches", "npucompose.models.small:ParallelBranches"),
        ("conv_nhwc", "npucompose.models.small:ConvNhwc"),
        ("resnet18", "npucompose.models.convolutional:ResNet18"),
        ("unet", "npucompose.models.convolutional:UNet"),
        ("python", "npucompose.models.python:Python"),
    ),
)

__all__ = ["MODELS", "Built", "Inputs", "Model"]
