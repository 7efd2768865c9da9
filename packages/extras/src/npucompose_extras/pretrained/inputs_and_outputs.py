"""What a Hugging Face class takes and returns: plain tensors in, made from its signature and configuration, and out.

Imports torch: a model imports this inside `build`. Knows no file and no class name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from npucompose.errors import ConfigError, listed

FIRST_ID = 3
"""Ids below it are often special: padding, begin, end."""


@contextmanager
def offline() -> Iterator[None]:
    """The Hugging Face libraries fetch nothing meanwhile, whatever a configuration makes them want."""
    from huggingface_hub import constants  # pyright: ignore[reportMissingImports]

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


class Outputs(nn.Module):
    """The tensors that a class returns, in its order: the first one, or all of them as a tuple.

    `names` are the arguments of the class's forward that are given, in the order in which they may come without names.
    """

    def __init__(self, inner: nn.Module, names: tuple[str, ...], *, first: bool) -> None:
        super().__init__()
        self.inner = inner
        self.names = names
        self.first = first

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.names])

    def forward(self, *values: torch.Tensor, **named: torch.Tensor) -> Any:
        returned = self.inner(**dict(zip(self.names, values, strict=False)), **named)
        if self.first:
            return returned[0]
        return tuple(leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))


class SentenceEncoder(nn.Module):
    """Embeddings (the mean over a sentence's tokens, at length 1) and the similarities (cosines) of all pairs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.inner(input_ids=input_ids, attention_mask=attention_mask)[0]
        counted = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * counted).sum(1) / counted.sum(1).clamp(min=1e-9)
        embeddings = functional.normalize(mean, dim=-1)
        return embeddings, torch.matmul(embeddings, embeddings.t())


@frozen(kw_only=True)
class Sizes:
    """How large the inputs are. A class whose configuration fixes a size has that one."""

    batch: int
    tokens: int
    frames: int
    samples: int


Maker = Callable[[torch.Generator], torch.Tensor]


def makers(module: nn.Module, sizes: Sizes) -> dict[str, Maker]:
    """{argument of forward: what makes its tensor from a generator}, in forward's order.

    input_ids [batch, tokens] for text, pixel_values [batch, channels, height, width] for images, input_features or
    input_values for speech; beside them decoder_input_ids [batch, tokens] where the class has a decoder of its own. A
    class that needs anything else is a ConfigError.
    """
    parameters = inspect.signature(module.forward).parameters
    config: Any = module.config
    main = getattr(module, "main_input_name", None)
    wanted: list[str] = [main or "a main input"]
    if main == "input_ids" and "pixel_values" in parameters and _has_eyes(config):
        wanted.append("pixel_values")
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    known: dict[str, Callable[[Any, Sizes], Maker]] = {
        "input_ids": _ids,
        "decoder_input_ids": _ids,
        "pixel_values": _image,
        "input_features": _features,
        "input_values": _wave,
    }
    needed = {n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    missing = [name for name in (*wanted, *sorted(needed - set(wanted))) if name not in known]
    if missing:
        raise ConfigError(
            f"model.architecture '{type(module).__name__}' needs other inputs than are made here ({listed(missing)}); "
            "use model=python for it."
        )
    return {name: known[name](config, sizes) for name in parameters if name in {*wanted, *needed}}


def _has_eyes(config: Any) -> bool:
    """Images beside the text, and not in the places that special tokens leave for them."""
    places = any(getattr(config, name, None) is not None for name in ("image_token_id", "image_token_index"))
    return getattr(config, "vision_config", None) is not None and not places


def _ids(config: Any, sizes: Sizes) -> Maker:
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) or FIRST_ID + 1
    least = FIRST_ID if vocabulary > FIRST_ID else 0
    return lambda g: torch.randint(least, vocabulary, (sizes.batch, sizes.tokens), generator=g)


def _normal(*shape: int) -> Maker:
    return lambda g: torch.randn(shape, generator=g)


def _image(config: Any, sizes: Sizes) -> Maker:
    vision = getattr(config, "vision_config", None) or config
    side: Any = getattr(vision, "image_size", None) or 32
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return _normal(sizes.batch, getattr(vision, "num_channels", 3), height, width)


def _features(config: Any, sizes: Sizes) -> Maker:
    """Whisper has as many frames as its two convolutions make places of, bins first; others frames first."""
    bins, places = (getattr(config, name, None) for name in ("num_mel_bins", "max_source_positions"))
    if bins and places:
        return _normal(sizes.batch, bins, 2 * places)
    names = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins", "input_size")
    bins = next((size for name in names if (size := getattr(config, name, None))), 80)
    return _normal(sizes.batch, sizes.frames, bins)


def _wave(config: Any, sizes: Sizes) -> Maker:
    """Samples of a wave form, or the spectrogram of a class whose configuration names its bins."""
    bins = getattr(config, "num_mel_bins", None)
    return _normal(sizes.batch, *((sizes.samples,) if bins is None else (config.max_length, bins)))
