"""Greedy generation in the words of a report, and its pictures: latency of each size, and against batch and prompt.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from npucompose.report.pictures import AXIS, CURVE, LABEL, TOP, WIDTH, Axis, Box, Drawing, time_axis
from npucompose.report.words import as_time
from npucompose.results.measured import GenerateFacts, GenerationPoint, GenerationTime
from npucompose.schema.sizes import as_bytes

NAMES: Mapping[str, str] = {
    "replay": "replay without guards",
    "compiled": "through torch.compile",
    "inductor": "torch.compile with Inductor",
    "eager": "eager",
}
HEAD = (
    "batch x prompt", "run as", "tokens/s", "by eager's", "time to first token", "time per token", "compiled for",
    "result",
)  # fmt: skip
BAR, GAP = 14, 10
INSET = 40
"""Between the edges of a picture of lines and its first and last point."""


def size_words(point: GenerationPoint) -> str:
    """`4 x 16`: prompts, and the tokens of each."""
    return f"{point.batch} x {point.prompt}"


def generation_sentence(point: GenerationPoint) -> str:
    """`1 x 16: 2,310 tokens/s, 5.10x over eager, 2.04x over torch.compile with Inductor; first token after 1.2 ms, …`.

    Of the way that a person would take: the handles where there are some.
    """
    best = point.best
    if best.first is None or best.tokens_per_s is None or best.per_token_us is None:
        return f"{size_words(point)}: not measured: {best.problem}"
    gains = [
        f"{best.tokens_per_s / one.tokens_per_s:.2f}x over {NAMES[one.way]}"
        for one in reversed(point.ways)
        if one.way in ("eager", "inductor") and one is not best and one.tokens_per_s
    ]
    speed = ", ".join((f"{best.tokens_per_s:,.0f} tokens/s", *gains))
    first, each = as_time(best.first.p50_us), as_time(best.per_token_us)
    return f"{size_words(point)}: {speed}; first token after {first}, then {each} per token"


def generation_memory(facts: GenerateFacts) -> str:
    """`weights 3.1 MiB, cache 0.5 MiB, pool 24.9 KiB of 4 x 16`; of the largest point."""
    most = max(facts.points, key=lambda point: point.cache_bytes)
    pool = f", pool {as_bytes(most.pool_bytes)}" if most.pool_bytes is not None else ""
    return f"weights {as_bytes(facts.weights_bytes)}; {size_words(most)}: cache {as_bytes(most.cache_bytes)}{pool}"


def generation_cells(point: GenerationPoint, one: GenerationTime) -> tuple[str, ...]:
    """The row of one way, under HEAD."""
    return (
        size_words(point),
        NAMES[one.way],
        "" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}",
        "" if one.speedup is None else f"{one.speedup:.2f}x",
        "" if one.first is None else as_time(one.first.p50_us),
        "" if one.per_token_us is None else as_time(one.per_token_us),
        "" if one.compile_s is None else as_time(one.compile_s * 1e6),
        _result(point, one),
    )


def _result(point: GenerationPoint, one: GenerationTime) -> str:
    if one.problem is not None:
        return one.problem
    if one.way == "eager":
        return f"{point.new_tokens} tokens, {point.distinct} different ones in the first text"
    return "eager's tokens"


Latency = Callable[[GenerationTime], float | None]
"""Microseconds of one way; None where it was not timed."""
LATENCIES: Mapping[str, Latency] = {
    "time to first token": lambda one: None if one.first is None else one.first.p50_us,
    "time per token": lambda one: one.per_token_us,
}


def generation_bars(facts: GenerateFacts) -> list[Drawing]:
    """Time to the first token, and time of each token after it: a bar for each way, a group for each size."""
    return [_bars(name, facts, of) for name, of in LATENCIES.items()]


def generation_lines(facts: GenerateFacts) -> list[Drawing]:
    """Both times against batch, at the first prompt, and against prompt, at the first batch; [] for one size alone."""
    first = facts.points[0]
    along = {
        f"batch, prompts of {first.prompt}": [(one.batch, one) for one in facts.points if one.prompt == first.prompt],
        f"tokens of a prompt, batch {first.batch}": [
            (one.prompt, one) for one in facts.points if one.batch == first.batch
        ],
    }
    return [
        _lines(f"{name} against {what}", sorted(points, key=lambda pair: pair[0]), of)
        for what, points in along.items()
        if len(points) > 1
        for name, of in LATENCIES.items()
    ]


def _lines(name: str, points: Sequence[tuple[int, GenerationPoint]], of: Latency) -> Drawing:
    """A line for each way through the points at which it was timed."""
    timed = [(size, one, us) for size, point in points for one in point.ways if (us := of(one)) is not None]
    across = Axis.between(points[0][0], points[-1][0])
    most = max((us for _, _, us in timed), default=1.0)
    ways = list(dict.fromkeys(one.way for _, one, _ in timed))

    def x(size: int) -> float:
        return LABEL + INSET + across.place(size) * (WIDTH - LABEL - 2 * INSET)

    def dots(way: str) -> Iterator[tuple[float, float, str]]:
        for size, one, us in timed:
            if one.way == way:
                yield x(size), CURVE - us / most * (CURVE - TOP), f"{size}, {NAMES[one.way]}: {as_time(us)}"

    return {
        "name": name,
        "lines": [(f"c{number % 6}", list(dots(way))) for number, way in enumerate(ways)],
        "legend": [(f"c{number % 6}", NAMES[way]) for number, way in enumerate(ways)],
        "marks": [(as_time(most * part), CURVE - part * (CURVE - TOP)) for part in (1.0, 0.5)],
        "base": CURVE,
        "axis": {
            "marks": [(str(size), x(size), "middle") for size, _ in points],
            "logarithmic": across.logarithmic,
            "height": CURVE + AXIS,
        },
    }


def _bars(name: str, facts: GenerateFacts, of: Latency) -> Drawing:
    timed = [(point, one, us) for point in facts.points for one in point.ways if (us := of(one)) is not None]
    scale = Axis(low=0.0, high=max((us for _, _, us in timed), default=1.0))
    ways = list(dict.fromkeys(one.way for _, one, _ in timed))
    boxes: list[Box] = []
    names: list[tuple[str, float]] = []
    y = 0.0
    for point in facts.points:
        names.append((size_words(point), y + BAR))
        for _, one, us in (row for row in timed if row[0] is point):
            words = f"{size_words(point)}, {NAMES[one.way]}: {as_time(us)}"
            width = max(scale.place(us) * (WIDTH - LABEL), 1.0)
            boxes.append((LABEL, y, width, BAR - 2, f"c{ways.index(one.way) % 6}", words))
            y += BAR
        y += GAP
    legend = [(f"c{number % 6}", NAMES[way]) for number, way in enumerate(ways)]
    return {"name": name, "names": names, "boxes": boxes, "legend": legend, "axis": time_axis(scale, y + AXIS)}
