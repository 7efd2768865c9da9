"""`npucompose sizes plan trace.csv`: the capture sizes of a server, what they pad, and what more of them would save."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.sizes import MemoryBound, as_bytes
from npucompose_devtools.capture_sizes.planner import NoPlan, SizeBudget, SizePlan, least_padding, plan
from npucompose_devtools.capture_sizes.trace import MOST_ROWS, Trace

VLLM = "vllm"
SIZES = re.compile(r"[0-9]{1,7}(,[0-9]{1,7}){0,9999}", re.ASCII)
SHOWN = 24
"""Numbers of recordings in the curve, evenly on the scale of their logarithm."""


def act(arguments: argparse.Namespace) -> int:
    """The command: exit status 2 and one paragraph where the trace or the budget cannot be used."""
    for option in ("most", "largest", "streams", "streams_each"):
        if (given := getattr(arguments, option)) is not None and given < 1:
            raise ConfigError(f"--{option.replace('_', '-')} {given}: must be at least 1.")
    whole = Trace.from_csv(arguments.trace)
    trace = whole if arguments.largest is None else whole.up_to(arguments.largest)
    if not trace.steps:
        raise ConfigError(f"--largest {arguments.largest}: each step of {arguments.trace} has more rows.")
    other = None if arguments.against is None else _other(arguments.against, trace)
    budget = _budget(arguments, trace, other)
    try:
        found = plan(trace, budget)
    except NoPlan as error:
        raise ConfigError(f"{arguments.trace}: {error}; --largest leaves larger steps unrecorded.") from None
    answer = Answer(trace=trace, unrecorded=whole.count - trace.count, plan=found, other=other)
    print(json.dumps(answer.as_dict(), indent=2) if arguments.json else "\n".join(answer.lines(budget)))
    return 0


@frozen(kw_only=True)
class Answer:
    trace: Trace
    unrecorded: int
    """Steps above `--largest`."""
    plan: SizePlan
    other: tuple[int, ...] | None

    @property
    def curve(self) -> list[tuple[int, int]]:
        """(recordings, least padding), until nothing is padded or twice as many as planned."""
        return list(least_padding(self.trace, 2 * max(len(self.plan.sizes), len(self.other or ()))))

    def as_dict(self) -> dict[str, Any]:
        other = None
        if self.other is not None:
            other = {"sizes": list(self.other), "padding": self.trace.padding(self.other)}
        return {
            "sizes": list(self.plan.sizes), "padding": self.plan.padding, "bytes": self.plan.nbytes,
            "beyond": self.plan.beyond, "steps": self.trace.count, "rows": self.trace.rows,
            "unrecorded_steps": self.unrecorded, "against": other, "curve": self.curve,
        }  # fmt: skip

    def lines(self, budget: SizeBudget) -> Iterator[str]:
        padding, share = self.plan.padding, self.trace.share
        yield f"trace       {self.trace.count:,} steps of {len(self.trace.steps):,} sizes, {self.trace.rows:,} rows"
        if self.unrecorded:
            yield f"unrecorded  {self.unrecorded:,} steps are larger than --largest and run without a recording"
        yield f"sizes       {len(self.plan.sizes)}: {', '.join(map(str, self.plan.sizes))}"
        yield f"padding     {padding:,} rows, {share(padding):.2%} of all that are computed{_doubt(self.plan)}"
        if math.isfinite(budget.nbytes):
            yield f"memory      {as_bytes(round(self.plan.nbytes))} of {as_bytes(round(budget.nbytes))}"
        if self.other is not None:
            theirs = self.trace.padding(self.other)
            yield f"against     {len(self.other)} sizes with {theirs:,} rows of padding{_change(padding, theirs)}"
        yield "curve       least padding by number of recordings, without a bound of memory"
        for number, least in _thinned(self.curve):
            mark = "  <- as many as planned" if number == len(self.plan.sizes) else ""
            yield f"            {number:>5}  {share(least):7.2%}  {least:,} rows{mark}"


def _change(padding: int, theirs: int) -> str:
    """Nothing, where the others pad nothing."""
    if not theirs:
        return ""
    return f"; the plan pads {abs(1 - padding / theirs):.1%} {'less' if padding <= theirs else 'more'}"


def _doubt(found: SizePlan) -> str:
    return f"; the search was ended: at most {found.beyond:,} rows could be saved within the budget" * bool(
        found.beyond
    )


def _thinned(curve: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    last = len(curve)
    wanted = {round(last ** (n / (SHOWN - 1))) for n in range(SHOWN)}
    return [(number, least) for number, least in curve if number in wanted]


def _other(text: str, trace: Trace) -> tuple[int, ...]:
    """The list to compare with, up to the first size that holds the largest step of the trace."""
    largest = max(trace.steps)
    if text == VLLM:
        return vllm_sizes(largest)
    if not SIZES.fullmatch(text) or "0" in text.split(","):
        raise ConfigError(f"--against {text}: must be {VLLM} or sizes with commas between them, as in 1,2,4,8.")
    sizes = sorted({int(size) for size in text.split(",")})
    if sizes[-1] < largest:
        raise ConfigError(
            f"--against {text}: has no size for steps of {largest} rows; --largest {sizes[-1]} leaves them."
        )
    return tuple(sizes)


def vllm_sizes(largest: int) -> tuple[int, ...]:
    """What vLLM 0.32 captures on a GPU: 1, 2, 4, multiples of 8 below 256, then of 16 (vllm/config/vllm.py,
    `_set_cudagraph_sizes`), here up to the first that holds `largest` rows."""
    sizes: list[int] = []
    for size in (1, 2, 4, *range(8, 256, 8), *range(256, MOST_ROWS + 16, 16)):
        sizes.append(size)
        if size >= largest:
            break
    return tuple(sizes)


def _budget(arguments: argparse.Namespace, trace: Trace, other: tuple[int, ...] | None) -> SizeBudget:
    """Recordings: the least of `--most`, what the streams allow, and as many as `--against` has."""
    counts = [count for count in (arguments.most, _by_streams(arguments)) if count is not None]
    if not counts:
        counts = [len(other)] if other is not None else [len(trace.steps)]
    if (arguments.memory is None) != (arguments.recording is None):
        raise ConfigError("--memory and --recording go together: how much there is, and what recordings take.")
    if arguments.memory is None:
        return SizeBudget(recordings=min(counts))
    memory = _nbytes("--memory", arguments.memory)
    return SizeBudget(recordings=min(counts), nbytes=memory, nbytes_of=_between(_points(arguments.recording)))


def _by_streams(arguments: argparse.Namespace) -> int | None:
    if (arguments.streams is None) != (arguments.streams_each is None):
        raise ConfigError("--streams and --streams-each go together: how many there are, and what one recording takes.")
    if arguments.streams is None:
        return None
    if arguments.streams_each > arguments.streams:
        raise ConfigError(f"--streams-each {arguments.streams_each}: is more than --streams {arguments.streams}.")
    return arguments.streams // arguments.streams_each


def _points(text: str) -> list[tuple[int, int]]:
    """`1=1.2MiB,64=3MiB` by size."""
    points = {}
    for part in text.split(","):
        size, _, amount = part.partition("=")
        if not SIZES.fullmatch(size) or not amount or int(size) in points:
            raise ConfigError(
                f"--recording {text}: must be SIZE=BYTES with commas between them, as in 1=1.2MiB,64=3MiB."
            )
        points[int(size)] = _nbytes("--recording", amount)
    return sorted(points.items())


def _nbytes(option: str, text: str) -> int:
    try:
        bound = MemoryBound.from_text(text)
    except ValueError:
        bound = None
    if bound is None or bound.unit == "x":
        raise ConfigError(f"{option} {text}: must be a number of bytes with its unit, as in 512MiB.")
    return bound.nbytes(0)


def _between(points: Sequence[tuple[int, int]]) -> Callable[[int], float]:
    """Linear between the points and beyond them; one point is good for each size."""
    if len(points) == 1:
        return lambda size: points[0][1]

    def nbytes(size: int) -> float:
        (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if size <= pair[1][0]), points[-2:])
        return max(0.0, y0 + (y1 - y0) * (size - x0) / (x1 - x0))

    return nbytes
