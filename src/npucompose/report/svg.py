"""Pictures of a report as inline SVG: latency distributions, a stacked bar, lanes of streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npucompose.report.axis import Axis
from npucompose.report.markup import Html, joined, tag
from npucompose.report.words import as_count, as_time

WIDTH = 720
BINS = 60
ROW = 64
LABEL = 110
"""Left margin, for names."""
LONGEST = 11
"""Characters of a name in it."""
LANE = 30
FEW = 30
"""Samples that are drawn one by one."""
MOST_NODES = 4000
"""Nodes drawn; a picture of more would be a grey band and a slow page."""


def distributions(samples: Mapping[str, Sequence[float]]) -> Html:
    """A histogram (few samples: each by itself) of each candidate on one axis, from the fastest sample of all to the
    slowest 99th percentile.

    The slowest hundredth is cut off and counted beside the name: one outlier would make everything else a line.
    """
    low = min(min(times) for times in samples.values())
    high = max(_percentile(times, 99) for times in samples.values())
    scale = Axis.between(low, high if high > low else low + 1.0)
    rows = [_row(n, name, times, scale) for n, (name, times) in enumerate(samples.items())]
    height = ROW * len(rows) + 24
    return picture(height, "latency distributions", *rows, axis(scale, height))


def _row(row: int, name: str, times: Sequence[float], scale: Axis) -> Html:
    shown = [time for time in times if time <= scale.high]
    beyond, base = len(times) - len(shown), ROW * (row + 1)
    draw = _ticks if len(times) <= FEW else _histogram
    middle = _place(_percentile(times, 50), scale)
    slower = (
        tag("text", f"{beyond} slower →", x=WIDTH, y=base - ROW + 18, text_anchor="end", class_="small")
        if beyond
        else None
    )
    return tag(
        "g",
        label(name, base - 28),
        tag("text", as_count(len(times), "sample"), x=0, y=base - 12, class_="small"),
        slower,
        *draw(shown, scale, base, f"c{row % 6}"),
        tag("line", x1=middle, x2=middle, y1=base - ROW + 10, y2=base, class_="mark"),
        tag("line", x1=LABEL, x2=WIDTH, y1=base, y2=base, class_="rule"),
    )


def _place(time: float, scale: Axis) -> float:
    return LABEL + scale.place(time) * (WIDTH - LABEL)


def _ticks(times: Sequence[float], scale: Axis, base: float, class_: str) -> Iterator[Html]:
    """Each sample by itself."""
    for time in times:
        x = min(_place(time, scale), WIDTH - 3) - 1.5
        yield tag("rect", tag("title", as_time(time)), x=x, y=base - 30, width=3, height=30, class_=class_)


def _histogram(times: Sequence[float], scale: Axis, base: float, class_: str) -> Iterator[Html]:
    counts = [0] * BINS
    for time in times:
        counts[min(BINS - 1, int(scale.place(time) * BINS))] += 1
    width, tallest = (WIDTH - LABEL) / BINS, max(counts)
    for n, count in enumerate(counts):
        if count:
            height = count / tallest * (ROW - 14)
            yield tag(
                "rect",
                x=LABEL + n * width,
                y=base - height,
                width=max(width - 1, 0.5),
                height=height,
                class_=class_,
            )


def axis(scale: Axis, height: float) -> Html:
    """Five marks of time at the bottom of a picture."""
    texts: list[Html] = []
    for n, mark in enumerate(scale.marks(5)):
        x = LABEL + (WIDTH - LABEL) * n / 4
        anchor = "start" if n == 0 else "end" if n == 4 else "middle"
        texts.append(tag("text", as_time(mark), x=x, y=height - 6, text_anchor=anchor, class_="small"))
    if scale.logarithmic:
        texts.append(tag("text", "logarithmic", x=0, y=height - 6, class_="small"))
    return joined(texts)


def stacked(name: str, parts: Mapping[str, float]) -> Html:
    """Seconds that add up, as one bar, each part named in the legend below it."""
    total = sum(parts.values()) or 1.0
    x, bars, legend = 0.0, list[Html](), list[Html]()
    for n, (part, seconds) in enumerate(parts.items()):
        width = WIDTH * seconds / total
        words = f"{part} {as_time(seconds * 1e6)}"
        bars.append(tag("rect", tag("title", words), x=x, y=0, width=width, height=26, class_=f"c{n % 6}"))
        legend.append(tag("li", tag("span", class_=f"key c{n % 6}"), words))
        x += width
    told = f"{name}: {as_time(sum(parts.values()) * 1e6)}"
    return tag("figure", tag("figcaption", told), picture(26, name, *bars), tag("ul", *legend, class_="legend"))


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
    names = [label(stream, n * LANE + LANE / 2 + 4) for n, stream in enumerate(streams)]
    return picture(LANE * len(streams), "stream lanes", *names, *boxes)


def label(name: str, y: float, *, small: bool = False) -> Html:
    """A name in the left margin, cut to fit there; the whole of it where a pointer rests."""
    cut = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    inside: tuple[object, ...] = (tag("title", name), cut) if cut != name else (name,)
    return tag("text", *inside, x=0, y=y, class_="small" if small else "name")


def picture(height: float, name: str, *content: Html | None) -> Html:
    """Something WIDTH wide, scaled to the page."""
    return tag("svg", *content, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=name)


def _percentile(times: Sequence[float], percent: float) -> float:
    ordered = sorted(times)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
