"""What came of a run, in the few sentences that its page opens with. Pure: reads a Report."""

from __future__ import annotations

from collections.abc import Iterator

from npucompose.report.summary import stream_line
from npucompose.report.words import WAYS, as_count, as_time, is_wrong, why_untimed
from npucompose.results.record import Report


def verdict(report: Report) -> list[str]:
    """The most important first: `1.91x over eager: median ratio of …`, `equals eager bit for bit`, the stream plan."""
    return [*_speed(report), *_results(report), *_plan(report), *_attention(report)]


def _speed(report: Report) -> Iterator[str]:
    times = report.stages.benchmark
    if times is None:
        return
    if is_wrong(report):
        yield f"No speed is shown: {why_untimed(report)}."
        return
    faster = times.speedup.get("eager")
    if faster is None:
        yield f"{as_time(times.p50_us)}, median of {as_count(len(times.samples_us), 'call')}."
        return
    pairs = as_count(len(times.samples_us), "pair")
    yield f"{faster:.2f}x over eager ({WAYS[times.candidate]}): median ratio of {pairs} of calls made in turn."


def _results(report: Report) -> Iterator[str]:
    found = report.numerics
    if found is not None and found.passed:
        equal = "bit for bit" if found.bitwise else f"within tolerance, largest error {found.max_abs_err or 0:.3g}"
        yield f"Results equal {found.reference}'s {equal}."


def _plan(report: Report) -> Iterator[str]:
    if report.streams is not None and not is_wrong(report):
        yield f"Stream plan {stream_line(report.streams)}."


def _attention(report: Report) -> Iterator[str]:
    if report.recompiles:
        yield f"{as_count(len(report.recompiles), 'recompilation')}, see below."
    idle = sum(one.option != "target" for one in report.effective)
    if idle:
        yield f"{as_count(idle, 'option')} did not take effect as requested, see below."
