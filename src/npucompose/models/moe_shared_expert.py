"""Router and experts beside one shared expert: the branch that is worth a second stream in DeepSeek-like models."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class MoeSharedExpert(Model):
    """forward(x [tokens, hidden]) -> x + routed experts(x) + shared expert(x); no shape depends on data."""

    name: ClassVar[str] = "moe_shared_expert"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(256, "inner width of an expert", ge=1)
    experts: int = option(4, "routed experts", ge=1)
    top_k: int = option(2, "experts that count for a token", ge=1)
    shared_ffn: int = option(1024, "inner width of the shared expert", ge=1)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(f"model.top_k={self.top_k} is more than model.experts={self.experts}.")

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import moe
        from npucompose.models.modules.seeding import generator, inference, seeded

        self.check()
        with seeded(seed):
            net = moe.MoeSharedExpert(self.hidden, self.ffn, self.experts, self.top_k, self.shared_ffn)

        def inputs(step: int) -> Inputs:
            return {"x": torch.randn(self.tokens, self.hidden, generator=generator(seed, step))}

        return Built(module=inference(net), inputs=inputs)
