"""Wrappers that give a Hugging Face module plain tensors in and plain tensors out. Knows no file and no class name."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class FirstOutput(nn.Module):
    """Logits of a language model, or whatever tensor a class returns first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids)[0]


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
