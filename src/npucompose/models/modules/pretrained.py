"""Wrappers that give a Hugging Face module plain tensors in and plain tensors out. Knows no file and no class name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves


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
