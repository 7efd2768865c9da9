"""Which mode won and by how much, for the terminal and for report.html. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from npucompose.report.markup import Html, table, tag
from npucompose.report.words import as_time, is_wrong
from npucompose.schema.modes import Behind, ModeFacts, ModeTime
from npucompose.schema.record import Report
from npucompose.schema.timing import Candidate

Row = tuple[str, Text]

WAYS: dict[Candidate, str] = {"replay": "detached replay", "compiled": "through torch.compile", "eager": "as it is"}


def sentence(facts: ModeFacts) -> str:
    """`max-autotune won: 1.21x as fast as reduce-overhead (quartiles 1.18x to 1.25x), 1.34x as fast as eager (…)`."""
    behind = {one.mode: one.behind for one in facts.modes if one.behind is not None}
    if facts.fastest is None or not behind:
        return "nobody won: no two modes gave results that may be timed"
    if facts.won:
        ahead = [f"{told.ratio:.2f}x as fast as {mode} ({_quartiles(told)})" for mode, told in behind.items()]
        return f"{facts.fastest} won: {', '.join(ahead)}"
    mode, nearest = min(behind.items(), key=lambda item: item[1].low)
    if nearest.low > 1:
        rounds = max(len(one.timing.samples_us) for one in facts.modes if one.timing is not None)
        return f"nobody is said to have won: {rounds} rounds are too few; {facts.fastest} was ahead"
    return (
        f"nobody won: {facts.fastest} and {mode} are even within the spread "
        f"({nearest.ratio:.2f}x, {_quartiles(nearest)})"
    )


def _quartiles(behind: Behind) -> str:
    return f"quartiles {behind.low:.2f}x to {behind.high:.2f}x"


def rows_of_modes(report: Report) -> Iterator[Row]:
    facts = report.stages.modes
    if facts is None or is_wrong(report):
        return
    yield "modes", Text(sentence(facts), style="bold" if facts.won else "yellow")
    for one in facts.modes:
        yield "", Text(" · ".join((one.mode, *_told(one))), style="dim" if one.passed else "red")


def _told(one: ModeTime) -> list[str]:
    """`p50 8.01 ms through torch.compile · compiled for 35.20 s · equals eager bit for bit`."""
    words = [f"p50 {as_time(one.timing.p50_us)} {_way(one)}"] if one.timing is not None else []
    words += [f"compiled for {as_time(one.compile_s * 1e6)}"] if one.compile_s else []
    words += [_result(one)] if one.mode != "eager" or not one.passed else []
    return [*words, f"does not act there: {', '.join(one.idle)}"] if one.idle else words


def _way(one: ModeTime) -> str:
    return "" if one.candidate is None else WAYS[one.candidate]


def _result(one: ModeTime) -> str:
    if not one.passed:
        return f"not timed: {one.problem or 'wrong results'}"
    if one.bitwise:
        return "equals eager bit for bit"
    return f"equals eager within tolerance, largest error {one.max_abs_err or 0.0:.3g}"


def tables_of_modes(report: Report) -> Iterator[Html]:
    facts = report.stages.modes
    if facts is None or is_wrong(report):
        return
    yield tag("p", f"{sentence(facts)}.")
    head = ("mode", "called", "p50", "by the fastest", "quartiles", "compiled for", "result", "does not act there")
    yield table(head, [_cells(one) for one in facts.modes])


def _cells(one: ModeTime) -> tuple[str, ...]:
    return (
        one.mode,
        _way(one),
        "" if one.timing is None else as_time(one.timing.p50_us),
        "" if one.behind is None else f"{one.behind.ratio:.2f}x",
        "" if one.behind is None else f"{one.behind.low:.2f}x to {one.behind.high:.2f}x",
        as_time(one.compile_s * 1e6) if one.compile_s else "",
        _result(one),
        ", ".join(one.idle),
    )
