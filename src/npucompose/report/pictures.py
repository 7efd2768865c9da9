"""Where things lie in the pictures of a report: latency, bars, stream lanes, timelines, runs over two figures.

Values only, which the macros of templates/pictures.html draw as inline SVG. Knows no markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from npucompose.report.words import as_count, as_time
from npucompose.results.graphs import GraphDrawing
from npucompose.results.streams import Timeline, Timelines
from npucompose.schema.sizes import as_bytes
from npucompose.schema.streams import DEFAULT_STREAM

Drawing = dict[str, Any]
"""What one macro draws; boxes are (x, y, width, height, class[, title])."""
Box = tuple[Any, ...]

WIDTH = 720
BINS = 60
ROW = 64
LABEL = 110
"""Left margin, for names."""
LANE = 30
AXIS = 24
FEW = 30
"""Samples that are drawn one by one."""
MOST_NODES = 4000
"""Nodes drawn; a picture of more would be a grey band and a slow page."""
CURVE, TOP = 120, 12
"""The height of a curve over time, and what is free above its highest point."""
BYTES_ALIVE = "bytes alive"
MOST_EVENTS = 400
"""Arrows drawn; more would hide what they connect."""
NARROWEST = 0.4
DECADE = 10.0


@frozen(kw_only=True)
class Axis:
    """Values to places between 0 and 1; logarithmic where a decade or more lies between them."""

    low: float
    high: float
    logarithmic: bool = False

    @staticmethod
    def between(low: float, high: float) -> Axis:
        """`Axis.between(1, 100).place(10)` is 0.5, `Axis.between(0, 9).place(3)` is a third."""
        if low == high:
            low, high = low * 0.9, high * 1.1 or 1.0
        return Axis(low=low, high=high, logarithmic=low > 0 and high / low >= DECADE)

    def place(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """The inverse of `place`."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** place
        return self.low + (self.high - self.low) * place

    def marks(self, number: int) -> Iterator[float]:
        """Values at places that are equally far apart, both ends among them."""
        return (self.value(n / (number - 1)) for n in range(number))

    def x(self, value: float) -> float:
        """In a picture WIDTH wide, right of the names."""
        return LABEL + self.place(value) * (WIDTH - LABEL)


def time_axis(scale: Axis, height: float) -> Drawing:
    """Five marks of time at the bottom of a picture: (words, x, where the words are held)."""
    anchors = ("start", "middle", "middle", "middle", "end")
    marks = [
        (as_time(mark), LABEL + (WIDTH - LABEL) * n / 4, anchor)
        for n, (mark, anchor) in enumerate(zip(scale.marks(5), anchors, strict=True))
    ]
    return {"marks": marks, "logarithmic": scale.logarithmic, "height": height}


def distributions(samples: Mapping[str, Sequence[float]]) -> Drawing:
    """A histogram (few samples: each by itself) of each candidate on one axis, from the fastest sample of all to the
    slowest 99th percentile.

    The slowest hundredth is cut off and counted beside the name: one outlier would make everything else a line.
    """
    low = min(min(times) for times in samples.values())
    high = max(_percentile(times, 99) for times in samples.values())
    scale = Axis.between(low, high if high > low else low + 1.0)
    rows = [_row(n, name, times, scale) for n, (name, times) in enumerate(samples.items())]
    return {"rows": rows, "axis": time_axis(scale, ROW * len(rows) + AXIS)}


def _row(row: int, name: str, times: Sequence[float], scale: Axis) -> Drawing:
    shown = [time for time in times if time <= scale.high]
    base, draw = ROW * (row + 1), _ticks if len(times) <= FEW else _histogram
    return {
        "name": name,
        "count": as_count(len(times), "sample"),
        "slower": len(times) - len(shown),
        "base": base,
        "boxes": draw(shown, scale, base, f"c{row % 6}"),
        "middle": scale.x(_percentile(times, 50)),
    }


def _ticks(times: Sequence[float], scale: Axis, base: float, kind: str) -> list[Box]:
    """Each sample by itself."""
    return [(min(scale.x(time), WIDTH - 3) - 1.5, base - 30, 3, 30, kind, as_time(time)) for time in times]


def _histogram(times: Sequence[float], scale: Axis, base: float, kind: str) -> list[Box]:
    counts = [0] * BINS
    for time in times:
        counts[min(BINS - 1, int(scale.place(time) * BINS))] += 1
    width, tall = (WIDTH - LABEL) / BINS, (ROW - 14) / max(counts)
    bars = [(n, count * tall) for n, count in enumerate(counts) if count]
    return [(LABEL + n * width, base - height, max(width - 1, 0.5), height, kind) for n, height in bars]


def stacked(name: str, parts: Mapping[str, float]) -> Drawing:
    """Seconds that add up, as one bar, each part named in the legend below it."""
    total, x = sum(parts.values()), 0.0
    boxes: list[Box] = []
    for n, (part, seconds) in enumerate(parts.items()):
        width = WIDTH * seconds / (total or 1.0)
        boxes.append((x, 0, width, 26, f"c{n % 6}", f"{part} {as_time(seconds * 1e6)}"))
        x += width
    return {"name": name, "words": f"{name}: {as_time(total * 1e6)}", "boxes": boxes}


def lanes(nodes: Mapping[str, str]) -> Drawing:
    """{node: stream} in running order as one lane for each stream; a node is as wide as any other: order, not time."""
    streams = list(dict.fromkeys(nodes.values()))
    shown = list(nodes.items())[:MOST_NODES]
    width = (WIDTH - LABEL) / max(len(shown), 1)
    boxes = [
        (LABEL + n * width, lane * LANE + 4, max(width - 0.5, 0.4), LANE - 8, f"c{lane % 6}", f"{name} on {stream}")
        for n, (name, stream) in enumerate(shown)
        for lane in (streams.index(stream),)
    ]
    return {"names": _names(streams), "boxes": boxes, "height": LANE * len(streams)}


def _names(streams: Sequence[str]) -> list[tuple[str, float]]:
    return [(stream, n * LANE + LANE / 2 + 4) for n, stream in enumerate(streams)]


def _percentile(times: Sequence[float], percent: float) -> float:
    ordered = sorted(times)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def timeline_drawings(timelines: Timelines) -> Iterator[Drawing]:
    """One for each timeline: a lane for each stream, a box for each kernel, as wide as it takes.

    Those of one graph, predicted and measured, share one scale of time.
    """
    for name, line in timelines:
        alike = [other for graph, other in timelines if graph == name]
        end = max((end for other in alike for end in other.end_us), default=0.0)
        if end > 0:
            yield _timeline(name, line, Axis(low=0.0, high=end))


def _timeline(name: str, line: Timeline, scale: Axis) -> Drawing:
    streams = streams_of(line)
    shown = min(len(line.nodes), MOST_NODES)
    words = [f"{name}, {line.source}: {as_time(max(line.end_us))}", as_count(len(line.nodes), "kernel")]
    words += [f"the first {shown} drawn"] if shown < len(line.nodes) else []
    words += [as_count(len(line.events), "event")] if line.events else []
    words += [f"{MOST_EVENTS} drawn"] if len(line.events) > MOST_EVENTS else []
    bottom = LANE * len(streams)
    return {
        "name": f"timeline of {name}",
        "words": " · ".join(words),
        "names": _names(streams),
        "boxes": _kernels(line, streams, scale),
        "arrows": arrows(line, {stream: (n + 0.5) * LANE for n, stream in enumerate(streams)}, scale),
        "axis": time_axis(scale, bottom + AXIS),
    }


def _kernels(line: Timeline, streams: Sequence[str], scale: Axis) -> Iterator[Box]:
    for lane, stream in enumerate(streams):
        for name, start, end in lane_spans(line, stream, scale):
            words = f"{name} on {stream}: {as_time(end - start)}, from {as_time(start)} to {as_time(end)}"
            width = max((end - start) / scale.high * (WIDTH - LABEL), NARROWEST)
            yield scale.x(start), lane * LANE + 4, width, LANE - 8, f"kernel c{lane % 6}", words


def lane_kernels(line: Timeline, stream: str) -> list[tuple[str, float, float]]:
    """(kernel, start, end) of those that are drawn of a stream, by start."""
    kernels = list(zip(line.nodes, line.streams, line.start_us, line.end_us, strict=True))[:MOST_NODES]
    here = ((node, start, end) for node, other, start, end in kernels if other == stream)
    return sorted(here, key=lambda kernel: kernel[1])


def lane_spans(line: Timeline, stream: str, scale: Axis) -> list[tuple[str, float, float]]:
    """The same, but kernels that would be narrower than a pixel, and nearer than one to another such, are one:
    `12 kernels, mm_3 to add_9`."""
    pixel = (scale.high - scale.low) / (WIDTH - LABEL)
    spans: list[tuple[str, str, int, float, float]] = []  # first and last kernel, how many, start, end
    for node, start, end in lane_kernels(line, stream):
        first, _, count, since, until = spans[-1] if spans else ("", "", 0, 0.0, 0.0)
        if count and start - until < pixel and end - start < pixel and (count > 1 or until - since < pixel):
            spans[-1] = (first, node, count + 1, since, end)
        else:
            spans.append((node, node, 1, start, end))
    return [
        (first if count == 1 else f"{count} kernels, {first} to {last}", start, end)
        for first, last, count, start, end in spans
    ]


def streams_of(line: Timeline) -> list[str]:
    """The streams of a timeline, the default one first."""
    return list(dict.fromkeys(sorted(line.streams, key=lambda stream: stream != DEFAULT_STREAM)))


def arrows(line: Timeline, heights: Mapping[str, float], scale: Axis) -> Iterator[Box]:
    """(x, y, x, y): from the end of the recorder to the beginning of the waiter, where both are drawn.

    `heights` are those of the streams.
    """
    at = {node: number for number, node in enumerate(line.nodes[:MOST_NODES])}
    for one, other in ((at[a], at[b]) for a, b in line.events[:MOST_EVENTS] if a in at and b in at):
        if line.start_us[other] <= scale.high:
            begin, end = heights[line.streams[one]], heights[line.streams[other]]
            yield scale.x(line.end_us[one]), begin, scale.x(line.start_us[other]), end


def memory_drawings(timelines: Timelines, drawings: Mapping[str, GraphDrawing]) -> Iterator[Drawing]:
    """Bytes of intermediate results alive: over time as predicted, else one node after the other in running order."""
    over_time = {name: line for name, line in timelines if line.counters.get(BYTES_ALIVE)}
    for name, line in over_time.items():
        scale = Axis(low=0.0, high=max(line.end_us, default=0.0))
        steps, axis = line.counters[BYTES_ALIVE], time_axis(scale, CURVE + AXIS)
        yield from _memory(f"{name}, {line.source}", steps, scale, axis)
    for name, drawing in drawings.items():
        alive = (drawing.after or drawing.before).alive
        if name not in over_time and alive:
            axis = {**time_axis(Axis(low=0.0, high=1.0), CURVE + AXIS), "marks": [("first node", LABEL, "start")]}
            axis["marks"].append((f"node {len(alive)}", WIDTH, "end"))
            steps = [(float(place), float(nbytes)) for place, nbytes in enumerate(alive)]
            yield from _memory(f"{name}, in running order", steps, Axis(low=0.0, high=float(len(alive))), axis)


def _memory(name: str, steps: Sequence[tuple[float, float]], scale: Axis, axis: Drawing) -> Iterator[Drawing]:
    most = max(value for _, value in steps)
    if most > 0 and scale.high > 0:
        yield {
            "name": f"memory of {name}",
            "words": f"{name}: at most {as_bytes(int(most))} alive",
            "path": " ".join(_curve(steps, most, scale)),
            "marks": [(as_bytes(int(most * part)), CURVE - part * (CURVE - TOP)) for part in (1.0, 0.5)],
            "base": CURVE,
            "axis": axis,
        }


def _curve(steps: Sequence[tuple[float, float]], most: float, scale: Axis) -> Iterator[str]:
    height: float = CURVE
    yield f"M{LABEL} {CURVE}"
    before = [math.nan, *(value for _, value in steps)]
    for us, value in (step for step, last in zip(steps, before, strict=False) if step[1] != last):
        x = scale.x(min(us, scale.high))
        yield f"L{x:.1f} {height:.1f}"
        height = CURVE - value / most * (CURVE - TOP)
        yield f"L{x:.1f} {height:.1f}"
    yield f"L{WIDTH} {height:.1f} L{WIDTH} {CURVE}Z"


@frozen(kw_only=True)
class Dot:
    """A run: `at` has its value for each objective."""

    label: str
    name: str
    front: bool
    at: tuple[float, ...]


FRAME = {"width": 420, "height": 300, "left": 82, "bottom": 26, "top": 6, "right": 30, "radius": 7}
"""Of a picture of dots."""
MARGIN = 0.05
"""So that no dot lies on it."""
MARKS = 3


def _framed(place: float, low: float, high: float) -> float:
    """Where a place between 0 and 1 lies between two edges of the frame."""
    return low + (MARGIN + (1 - 2 * MARGIN) * place) * (high - low)


def _x(place: float) -> float:
    return _framed(place, FRAME["left"], FRAME["width"] - FRAME["right"])


def _y(place: float) -> float:
    return _framed(place, FRAME["height"] - FRAME["bottom"], FRAME["top"])


def scatter(
    dots: Sequence[Dot],
    axes: tuple[int, int],
    names: tuple[str, str],
    words: tuple[Callable[[float], str], Callable[[float], str]],
) -> Drawing:
    """The dots over two of their objectives; smaller is better, so the lower left corner is best.

    What is on the front is filled, and comes last, so that nothing hides it.
    """
    across, up = (Axis.between(min(values), max(values)) for values in ([dot.at[n] for dot in dots] for n in axes))
    drawn: list[Drawing] = []
    for dot in sorted(dots, key=lambda dot: dot.front):
        values = [dot.at[axis] for axis in axes]
        x = _x(across.place(values[0]))
        drawn.append(
            {
                "dot": dot,
                "words": f"{dot.label} {dot.name}: {words[0](values[0])}, {words[1](values[1])}",
                "x": x,
                "y": _y(up.place(values[1])),
                "number_on_the_left": x > FRAME["width"] - FRAME["right"] - 40,
            }
        )
    return {
        "title": f"{names[1]} over {names[0]}",
        "frame": FRAME,
        "across": [(words[0](mark), _x(across.place(mark))) for mark in across.marks(MARKS)],
        "up": [(words[1](mark), _y(up.place(mark))) for mark in up.marks(MARKS)],
        "dots": drawn,
    }
