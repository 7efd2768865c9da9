"""Greedy generation as two modules that share a static cache, and the one loop that every way to run them goes through.

Knows no device and no library of models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor, nn

Step = Callable[..., tuple[Any, Any]]
"""prefill(prompt) or decode(token [batch, 1], position [1]) -> (next token [batch, 1], its logits)."""


@frozen(kw_only=True, eq=False)
class Generation:
    """A prompt and the steps that read it and go on from it. `prefill` starts anew, whatever the cache holds."""

    prefill: nn.Module
    decode: nn.Module
    prompt: Tensor
    """What `prefill` reads: tokens [batch, length], or the features of speech."""
    first: int
    """Position of the first token that `decode` is given."""
    batch: int
    new_tokens: int
    cache_bytes: int
    """Of keys and values, for `first + new_tokens` positions at least."""


Generations = Callable[[int, int, int], Generation]
"""(batch, tokens of a prompt, new tokens) -> steps on the same weights, with a cache of their own."""


@frozen(eq=False)
class GreedyLoop:
    """Always the likeliest token, `new_tokens` of each prompt: no end token ends it, so that every way does the same.

    The tensors that one call after the other is given are made once. A token is copied out of the step's result, whose
    memory the next step may use again.
    """

    prefill: Step
    decode: Step
    prompt: Tensor
    rows: tuple[Tensor, ...]
    """The tokens [batch, 1] of each position."""
    positions: tuple[Tensor, ...]

    @staticmethod
    def of(generation: Generation, prefill: Step, decode: Step) -> GreedyLoop:
        """A loop over these steps, which are those of `generation` however they were compiled."""
        import torch

        device = generation.prompt.device
        rows = torch.zeros(generation.new_tokens, generation.batch, 1, dtype=torch.long, device=device)
        places = torch.arange(generation.first, generation.first + generation.new_tokens, device=device)
        return GreedyLoop(prefill, decode, generation.prompt, rows.unbind(0), places.split(1))

    def first_token(self) -> Tensor:
        """The prompt is read; what follows it, [batch, 1]."""
        return self.rows[0].copy_(self.prefill(self.prompt)[0])

    def next_tokens(self) -> None:
        """All tokens after the first."""
        rows, decode = self.rows, self.decode
        for number, position in enumerate(self.positions[:-1]):
            rows[number + 1].copy_(decode(rows[number], position)[0])

    def tokens(self) -> Tensor:
        """[batch, new tokens], generated now."""
        import torch

        self.first_token()
        self.next_tokens()
        return torch.cat(self.rows, dim=1)

    def steps(self) -> tuple[tuple[Step, tuple[Tensor, ...]], ...]:
        """(step, the arguments of its first call), in the order in which they run."""
        return (self.prefill, (self.prompt,)), (self.decode, (self.rows[0], self.positions[0]))
