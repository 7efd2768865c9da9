"""What greedy generation took: a part of report.json. Knows no torch and no clock."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from npucompose.results.measured import TimeSamples

Way = Literal["replay", "compiled", "inductor", "eager"]
"""Handles of the recordings, calls through torch.compile with npucompose, torch.compile with Inductor, the model."""
OURS: tuple[Way, ...] = ("replay", "compiled")


@frozen(kw_only=True)
class GenerationTime:
    """One way to run the steps, in the same greedy loop as the others."""

    way: Way
    passed: bool
    """Its tokens are eager's. What has others is not timed."""
    problem: str | None = None
    """What could not be done, or where the tokens differ."""
    compile_s: float | None = None
    """Until the first tokens were there, all compiling included."""
    first: TimeSamples | None = None
    """Time to the first token: the prompt is read."""
    rest: TimeSamples | None = None
    """Time of all tokens after the first, of one generation each."""
    per_token_us: float | None = None
    """The median of `rest`, by its number of steps."""
    tokens_per_s: float | None = None
    """Tokens of all prompts by the medians of `first` and `rest` together."""
    speedup: float | None = None
    """Its tokens per second by eager's."""


@frozen(kw_only=True)
class GenerationPoint:
    """One size: prompts and their length."""

    batch: int
    prompt: int
    new_tokens: int
    distinct: int
    """Different tokens among those of the first prompt: of one token said again and again little is proven."""
    cache_bytes: int
    """Keys and values of one way; each has a cache of its own."""
    pool_bytes: int | None = None
    """What the recordings of prefill and decode take for intermediate results; None where nothing is recorded."""
    ways: tuple[GenerationTime, ...]
    """Eager last."""

    @property
    def best(self) -> GenerationTime:
        """Ours: handles where there are some, else through torch.compile; eager where nothing is compiled."""
        timed = {one.way: one for one in self.ways if one.first is not None}
        return next((timed[way] for way in (*OURS, "eager") if way in timed), self.ways[-1])


@frozen(kw_only=True)
class GenerateFacts:
    weights_bytes: int
    peak_rss_bytes: int
    """Of the process, all ways together."""
    points: tuple[GenerationPoint, ...]
