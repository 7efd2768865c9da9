"""The end of a decode step: last norm, logits, top-k and top-p, and a token drawn, as vllm-ascend's sampler does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class SamplingTail(Network):
    """forward(x [batch, hidden], temperature, top_p, top_k, noise) -> (tokens [batch], their log-probabilities).

    Drawn is the token with the greatest probability / noise, the noise being exponential: no torch.multinomial, which
    waits for the device. `filter`: by sorting, or by npu_top_k_top_p, for which the wheel has no GE converter.
    """

    name: ClassVar[str] = "sampling_tail"
    batch: int = option(4, "sequences", ge=1)
    hidden: int = option(256, "width", ge=1)
    vocabulary: int = option(2048, "tokens to choose from", ge=2)
    filter: Literal["sort", "npu"] = option("sort", "top-k and top-p by torch.sort, or by npu_top_k_top_p")
    dtype: Literal["float16", "bfloat16", "float32"] = option("float16", "of x and the weights; logits are float32")

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops

        ops.define()

        class SamplingTailModule(torch.nn.Module):
            """Norm, logits over the temperature, all but the likeliest hidden, one token drawn of each row."""

            def __init__(self, hidden: int, vocabulary: int, npu: bool) -> None:
                super().__init__()
                self.npu = npu
                self.norm = torch.nn.Parameter(torch.ones(hidden))
                self.head = torch.nn.Linear(hidden, vocabulary, bias=False)

            def forward(
                self,
                x: torch.Tensor,
                temperature: torch.Tensor,
                top_p: torch.Tensor,
                top_k: torch.Tensor,
                noise: torch.Tensor,
            ) -> tuple[torch.Tensor, torch.Tensor]:
                logits = self.head(torch.ops.npu.npu_rms_norm(x, self.norm, 1e-6)[0]).float() / temperature[:, None]
                if self.npu:
                    kept = torch.ops.npu.npu_top_k_top_p(logits, top_p, top_k)
                else:
                    kept = self._kept(logits, top_p, top_k)
                drawn = (torch.softmax(kept, -1) / noise).argmax(-1)
                return drawn, torch.log_softmax(logits, -1).gather(-1, drawn[:, None])[:, 0]

            def _kept(self, logits: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
                """Logits with -inf where more than 1 - p of the probability is, and behind the k greatest."""
                ordered = torch.sort(logits, -1).values
                least = ordered.gather(-1, (logits.shape[-1] - top_k).long()[:, None])
                ordered = torch.where(ordered < least, -torch.inf, ordered)
                unlikely = torch.softmax(ordered, -1).cumsum(-1) <= 1 - top_p[:, None]
                count = unlikely.sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
                return torch.where(logits < ordered.gather(-1, count), -torch.inf, logits)

        return SamplingTailModule(self.hidden, self.vocabulary, self.filter == "npu").to(getattr(torch, self.dtype))

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        drawn = torch.rand(self.batch, self.vocabulary, generator=chance)
        return {
            "x": normal(chance, self.batch, self.hidden).to(getattr(torch, self.dtype)),
            "temperature": 0.5 + torch.rand(self.batch, generator=chance),
            "top_p": 0.8 + 0.2 * torch.rand(self.batch, generator=chance),
            "top_k": torch.randint(1, min(64, self.vocabulary) + 1, (self.batch,), generator=chance).int(),
            "noise": -torch.log1p(-drawn).clamp(min=-20) + 1e-9,
        }
