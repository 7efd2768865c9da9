"""Timelines as inline SVG: a lane for each stream, a box for each kernel, as wide as it takes; below, bytes alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npucompose.report.axis import Axis
from npucompose.report.markup import Html, joined, tag
from npucompose.report.svg import LABEL, LANE, MOST_NODES, WIDTH, axis, label, picture
from npucompose.report.words import as_bytes, as_count, as_time
from npucompose.schema.streams import Timeline, Timelines

CURVE = 44
BYTES_ALIVE = "bytes alive"
MOST_EVENTS = 400
"""Arrows drawn; more would hide what they connect."""
NARROWEST = 0.4


def drawn(timelines: Timelines) -> Iterator[Html]:
    """One figure for each timeline; those of one graph, predicted and measured, share one scale of time."""
    for name, line in timelines:
        alike = [other for graph, other in timelines if graph == name]
        scale = max((end for other in alike for end in other.end_us), default=0.0)
        if scale > 0:
            yield _figure(name, line, scale)


def _figure(name: str, line: Timeline, scale: float) -> Html:
    streams = list(dict.fromkeys(sorted(line.streams, key=lambda stream: stream != "default")))
    shown = min(len(line.nodes), MOST_NODES)
    events = line.events[:MOST_EVENTS]
    words = [f"{name}, {line.source}: {as_time(max(line.end_us))}", as_count(len(line.nodes), "kernel")]
    words += [f"the first {shown} drawn"] if shown < len(line.nodes) else []
    words += [as_count(len(line.events), "event")] if line.events else []
    words += [f"{len(events)} drawn"] if len(events) < len(line.events) else []
    bottom = LANE * len(streams)
    curve = _curve(line.counters.get(BYTES_ALIVE, ()), scale, bottom)
    height = bottom + (CURVE if curve is not None else 0) + 24
    content: list[Html | None] = [
        *(label(stream, n * LANE + LANE / 2 + 4) for n, stream in enumerate(streams)),
        *_boxes(line, streams, scale),
        *_arrows(line, events, streams, scale),
        curve,
        axis(Axis(low=0.0, high=scale, logarithmic=False), height),
    ]
    return tag("figure", tag("figcaption", " · ".join(words)), picture(height, f"timeline of {name}", *content))


def _x(us: float, scale: float) -> float:
    return LABEL + us / scale * (WIDTH - LABEL)


def _boxes(line: Timeline, streams: Sequence[str], scale: float) -> Iterator[Html]:
    kernels = zip(line.nodes, line.streams, line.start_us, line.end_us, strict=True)
    for node, stream, start, end in list(kernels)[:MOST_NODES]:
        lane = streams.index(stream)
        words = f"{node} on {stream}: {as_time(end - start)}, from {as_time(start)} to {as_time(end)}"
        yield tag(
            "rect",
            tag("title", words),
            x=_x(start, scale),
            y=lane * LANE + 4,
            width=max((end - start) / scale * (WIDTH - LABEL), NARROWEST),
            height=LANE - 8,
            class_=f"kernel c{lane % 6}",
        )


def _arrows(line: Timeline, events: Sequence[tuple[str, str]], streams: Sequence[str], scale: float) -> Iterator[Html]:
    """From the end of the recorder to the beginning of the waiter, where both are known."""
    at = {node: number for number, node in enumerate(line.nodes[:MOST_NODES])}
    for recorder, waiter in events:
        if recorder not in at or waiter not in at:
            continue
        one, other = at[recorder], at[waiter]
        yield tag(
            "line",
            x1=_x(line.end_us[one], scale),
            y1=streams.index(line.streams[one]) * LANE + LANE / 2,
            x2=_x(line.start_us[other], scale),
            y2=streams.index(line.streams[other]) * LANE + LANE / 2,
            class_="event",
        )


def _curve(steps: Sequence[tuple[float, float]], scale: float, top: float) -> Html | None:
    most = max((value for _, value in steps), default=0.0)
    if most <= 0:
        return None
    base = top + CURVE - 6
    path = [f"M{LABEL} {base}"]
    height = base
    for us, value in steps:
        x = _x(min(us, scale), scale)
        path.append(f"L{x:.1f} {height:.1f}")
        height = base - value / most * (CURVE - 14)
        path.append(f"L{x:.1f} {height:.1f}")
    path.append(f"L{WIDTH} {height:.1f} L{WIDTH} {base}Z")
    return joined(
        (
            label(BYTES_ALIVE, base - 14, small=True),
            tag("text", f"at most {as_bytes(int(most))}", x=0, y=base, class_="small"),
            tag("path", d=" ".join(path), class_="curve"),
        )
    )
