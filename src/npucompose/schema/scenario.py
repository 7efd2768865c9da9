"""What of a model runs: a call as it stands, or the parts of text generation."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from npucompose.table.options import option

ScenarioName = Literal["forward", "prefill", "decode", "generate"]
FORWARD, GENERATE = "forward", "generate"


@frozen(kw_only=True)
class Scenario:
    """Prompts of `batch` x `prompt` tokens, and a static cache with room for `new_tokens` more."""

    name: ScenarioName = option("forward", "one call, one half of text generation, or greedy generation")
    batch: int | tuple[int, ...] = option(1, "prompts at once; of generate also a list: each is measured")
    prompt: int | tuple[int, ...] = option(
        16, "tokens of each prompt, or a list; of a class that hears or sees, those its decoder begins with"
    )
    new_tokens: int = option(32, "tokens that generate makes, and for which the static cache has room", ge=2)

    def __attrs_post_init__(self) -> None:
        for name in ("batch", "prompt"):
            value = getattr(self, name)
            sizes = sizes_of(value)
            if not sizes or min(sizes) < 1:
                raise ValueError(f"'{name}' must be >= 1, or a list of such numbers: {value}")
            if len(set(sizes)) < len(sizes):
                raise ValueError(f"'{name}' names a size twice: {list(sizes)}")
            if isinstance(value, tuple) and self.name != GENERATE:
                raise ValueError(
                    f"'{name}' is a list, of which only scenario=generate measures each; a sweep (-m) makes runs"
                )

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(batch, prompt) of everything that is measured, batches outermost."""
        return tuple((batch, prompt) for batch in sizes_of(self.batch) for prompt in sizes_of(self.prompt))


def sizes_of(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
