"""Pictures of a report as inline SVG: latency distributions, a stacked bar, lanes of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npucompose.report.markup import Html, joined, tag
from npucompose.report.words import as_count, as_time

WIDTH = 720
BINS = 60
ROW = 64
LABEL = 110
"""Left margin, for names."""
LANE = 30
MOST_NODES = 4000
"""Nodes drawn; a picture of more would be a grey band and a slow page."""


def distributions(samples: Mapping[str, Sequence[float]]) -> Html:
    """One histogram for each candidate on one axis of time, from the fastest sample to the slowest 99th percentile.

    The slowest hundredth is cut off and counted beside the name: one outlier would make everything else a line.
    """
    low = min(min(times) for times in samples.values())
    high = max(_percentile(times, 99) for times in samples.values())
    high = high if high > low else low + 1.0
    rows = [_histogram(n, name, times, low, high) for n, (name, times) in enumerate(samples.items())]
    height = ROW * len(rows) + 24
    return _picture(height, "latency distributions", *rows, _axis(low, high, height))


def _histogram(row: int, name: str, times: Sequence[float], low: float, high: float) -> Html:
    counts = [0] * BINS
    for time in times:
        if time <= high:
            counts[min(BINS - 1, int((time - low) / (high - low) * BINS))] += 1
    beyond = len(times) - sum(counts)
    tallest, base = max(counts), ROW * (row + 1)
    width = (WIDTH - LABEL) / BINS
    bars = [
        tag(
            "rect",
            x=LABEL + n * width,
            y=base - count / tallest * (ROW - 14),
            width=max(width - 1, 0.5),
            height=count / tallest * (ROW - 14),
            class_=f"c{row % 6}",
        )
        for n, count in enumerate(counts)
        if count
    ]
    middle = LABEL + (_percentile(times, 50) - low) / (high - low) * (WIDTH - LABEL)
    slower = (
        tag("text", f"{beyond} slower →", x=WIDTH, y=base - 6, text_anchor="end", class_="small") if beyond else None
    )
    return tag(
        "g",
        tag("text", name, x=0, y=base - 28, class_="name"),
        tag("text", as_count(len(times), "sample"), x=0, y=base - 12, class_="small"),
        slower,
        *bars,
        tag("line", x1=middle, x2=middle, y1=base - ROW + 10, y2=base, class_="mark"),
        tag("line", x1=LABEL, x2=WIDTH, y1=base, y2=base, class_="rule"),
    )


def _axis(low: float, high: float, height: int) -> Html:
    marks = [low + (high - low) * part / 4 for part in range(5)]
    texts: list[Html] = []
    for n, mark in enumerate(marks):
        x = LABEL + (WIDTH - LABEL) * n / 4
        anchor = "start" if n == 0 else "end" if n == 4 else "middle"
        texts.append(tag("text", as_time(mark), x=x, y=height - 6, text_anchor=anchor, class_="small"))
    return joined(texts)


def stacked(parts: Mapping[str, float]) -> Html:
    """Seconds that add up, as one bar, each part named in the legend below it."""
    total = sum(parts.values()) or 1.0
    x, bars, legend = 0.0, list[Html](), list[Html]()
    for n, (name, seconds) in enumerate(parts.items()):
        width = WIDTH * seconds / total
        words = f"{name} {as_time(seconds * 1e6)}"
        bars.append(tag("rect", tag("title", words), x=x, y=0, width=width, height=26, class_=f"c{n % 6}"))
        legend.append(tag("li", tag("span", class_=f"key c{n % 6}"), words))
        x += width
    return tag("figure", _picture(26, "compile time", *bars), tag("ul", *legend, class_="legend"))


def lanes(nodes: Mapping[str, str]) -> Html:
    """{node: stream} in running order as one lane for each stream; a node is as wide as any other: order, not time."""
    streams = list(dict.fromkeys(nodes.values()))
    shown = list(nodes.items())[:MOST_NODES]
    width = (WIDTH - LABEL) / max(len(shown), 1)
    boxes = [
        tag(
            "rect",
            tag("title", f"{name} on {stream}"),
            x=LABEL + n * width,
            y=streams.index(stream) * LANE + 4,
            width=max(width - 0.5, 0.4),
            height=LANE - 8,
            class_=f"c{streams.index(stream) % 6}",
        )
        for n, (name, stream) in enumerate(shown)
    ]
    names = [
        tag("text", _cut(stream), x=0, y=n * LANE + LANE / 2 + 4, class_="name") for n, stream in enumerate(streams)
    ]
    return _picture(LANE * len(streams), "stream lanes", *names, *boxes)


def _picture(height: int, name: str, *content: Html) -> Html:
    return tag("svg", *content, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=name)


def _cut(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _percentile(times: Sequence[float], percent: float) -> float:
    ordered = sorted(times)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
