"""Runs as dots over two figures, as inline SVG; those on the Pareto front are filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

from npucompose.report.axis import Axis
from npucompose.report.markup import Html, joined, tag

WIDTH, HEIGHT = 420, 300
LEFT, BOTTOM, TOP, RIGHT = 82, 26, 6, 30
RADIUS = 7
MARGIN = 0.05
"""Of the frame, so that no dot lies on it."""
MARKS = 3


@frozen(kw_only=True)
class Dot:
    """A run: `at` has its value for each objective."""

    label: str
    name: str
    front: bool
    at: tuple[float, ...]


def scatter(
    dots: Sequence[Dot],
    axes: tuple[int, int],
    names: tuple[str, str],
    words: tuple[Callable[[float], str], Callable[[float], str]],
) -> Html:
    """A figure of the dots over two of their objectives; smaller is better, so the lower left corner is best."""
    across, up = (_axis(dots, axis) for axis in axes)

    def x(value: float) -> float:
        return LEFT + (MARGIN + (1 - 2 * MARGIN) * across.place(value)) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (MARGIN + (1 - 2 * MARGIN) * up.place(value)) * (HEIGHT - BOTTOM - TOP)

    content = [_frame(), *_across(across, x, words[0]), *_up(up, y, words[1])]
    # what is on the front is drawn last, so that nothing hides it
    for dot in sorted(dots, key=lambda dot: dot.front):
        told = f"{dot.label} {dot.name}: {words[0](dot.at[axes[0]])}, {words[1](dot.at[axes[1]])}"
        content.append(_dot(dot, x(dot.at[axes[0]]), y(dot.at[axes[1]]), told))
    title = f"{names[1]} over {names[0]}"
    picture = tag("svg", *content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)
    return tag("figure", tag("figcaption", title), picture)


def _axis(dots: Sequence[Dot], objective: int) -> Axis:
    values = [dot.at[objective] for dot in dots]
    return Axis.between(min(values), max(values))


def _frame() -> Html:
    corner, top, right = HEIGHT - BOTTOM, TOP, WIDTH - RIGHT
    return joined(
        (
            tag("line", x1=LEFT, x2=right, y1=corner, y2=corner, class_="rule"),
            tag("line", x1=LEFT, x2=LEFT, y1=top, y2=corner, class_="rule"),
        )
    )


def _across(axis: Axis, x: Callable[[float], float], words: Callable[[float], str]) -> Iterator[Html]:
    for mark in axis.marks(MARKS):
        yield tag("text", words(mark), x=x(mark), y=HEIGHT - BOTTOM + 18, text_anchor="middle", class_="small")


def _up(axis: Axis, y: Callable[[float], float], words: Callable[[float], str]) -> Iterator[Html]:
    for mark in axis.marks(MARKS):
        yield tag("text", words(mark), x=LEFT - 8, y=y(mark) + 4, text_anchor="end", class_="small")


def _dot(dot: Dot, x: float, y: float, told: str) -> Html:
    circle = tag("circle", tag("title", told), cx=x, cy=y, r=RADIUS, class_="dot front" if dot.front else "dot")
    left = x > WIDTH - RIGHT - 40
    number = tag(
        "text",
        dot.label,
        x=x - RADIUS - 3 if left else x + RADIUS + 3,
        y=y + 4,
        text_anchor="end" if left else None,
        class_="small",
    )
    return tag("g", circle, number if dot.front else None)
