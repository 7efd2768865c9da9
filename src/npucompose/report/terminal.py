"""The summary at the end of a run, for a person. Pure: reads a Report, writes to a rich console.

    gpt_decode · target=cpu · mode=reduce-overhead · shapes=static             ok
      graphs    1 static graph · 134 -> 182 nodes
      numerics  equals eager bit for bit · 9 values compared
      latency   p50 eager 990.1 µs · detached replay 517.0 µs · 1.91x as fast

No speed is printed beside results that are not those of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.report.explain import path_words, verdict_words
from npucompose.report.sections import rows_of_ablation, rows_of_modes, rows_of_passes
from npucompose.report.words import (
    STATUS_STYLES,
    as_bytes,
    as_count,
    as_time,
    is_wrong,
    log_words,
    numerics_notes,
    overwrites_words,
    partition_words,
    plan_words,
    ran_as,
    status_words,
    stream_words,
    why_untimed,
)
from npucompose.results.graphs import npu_words
from npucompose.results.measured import Memory, Timing
from npucompose.results.record import BenchmarkFacts, Report

OPTIONS_SHOWN = 4
BAD = "bold red"

Row = tuple[str, Text]


def render(report: Report, console: Console, path: Path | str | None = None) -> None:
    """Print the summary; `path` is where report.json lies. 80 columns are enough; colours only on a terminal."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    status = Text(status_words(report), style=STATUS_STYLES.get(report.status, BAD))
    head.add_row(Text(_title(report), style="bold"), status)
    console.print(head)
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(style="dim", no_wrap=True)
    body.add_column(overflow="fold")
    before = ""
    for label, words in _rows(report):
        body.add_row("" if label == before else f"  {label}", words)
        before = label
    console.print(body)
    if path is not None:
        console.print(Text(f"  report: {path}"), soft_wrap=True)  # one line however long, so that it can be copied


def _rows(report: Report) -> Iterator[Row]:
    yield from _trouble(report)
    if report.reused:
        yield "reused", Text("nothing changed: every stage was taken from the store")
    yield from _graphs(report)
    yield from rows_of_passes(report)
    yield from _streams(report)
    yield from _npu(report)
    yield from _sinking(report)
    yield from _numerics(report)
    yield from _capture(report)
    yield from _latency(report)
    yield from rows_of_modes(report)
    yield from rows_of_ablation(report)
    yield from _memory(report)
    yield from _stages(report)
    yield from _effective(report)


def _title(report: Report) -> str:
    words = [_choice(report.experiment, "model")]
    words += [f"{group}={_choice(report.experiment, group)}" for group in ("target", "mode", "shapes")]
    return " · ".join(known for known in words if not known.endswith("?"))


def _choice(experiment: Mapping[str, Any], group: str) -> str:
    """The name of what a group holds; `?` in the report of a run that was refused before it was known."""
    value = experiment.get(group)
    name: Any = cast("Mapping[str, Any]", value).get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else "?"


def _trouble(report: Report) -> Iterator[Row]:
    if report.error and report.status != "expect_failed":
        yield "error", Text(report.error, style="red")
    if words := log_words(report):
        yield "log", Text(words, style="yellow")
    if report.last_lines:
        yield "log ends", Text("\n".join(report.last_lines), style="dim")
    for expectation in report.expectations:
        if not expectation.held:
            words = f"expect.{expectation.name} wanted {expectation.wanted}, got {expectation.got}"
            yield "expected", Text(words, style="red")
            for sentence in expectation.evidence:
                yield "", Text(sentence, style="dim")


def _graphs(report: Report) -> Iterator[Row]:
    if not report.graphs:
        return
    for kind in ("static", "dynamic"):
        of_kind = [graph for graph in report.graphs if graph.fx == kind]
        if not of_kind:
            continue
        before, after = sum(graph.nodes_before for graph in of_kind), sum(graph.nodes_after for graph in of_kind)
        words = f"{as_count(len(of_kind), f'{kind} graph')} · {before} -> {after} nodes"
        symbols = dict.fromkeys(symbol for graph in of_kind for symbol in graph.symbols)
        yield "graphs", Text(f"{words} · symbols {', '.join(symbols)}" if symbols else words)
    for words in (*partition_words(report), *overwrites_words(report)):
        yield "graphs", Text(words, style="yellow")
    refused = [one for graph in report.graphs for one in graph.npu_refuses]
    if refused:
        yield "graphs", Text(npu_words(refused), style="yellow")
    made = report.stages.sequence
    if made is not None:
        words = [as_count(len(made.calls), "declared call"), as_count(made.graphs, "graph")]
        yield "calls", Text(" · ".join([*words, as_count(made.captures, "recording")]))
        if made.ran is not None and (made.ran.eager or made.ran.replacements):
            yield "", Text(ran_as(made.ran), style="yellow")
    if report.recompiles:
        first = report.recompiles[0]
        words = f"{as_count(len(report.recompiles), 'recompilation')} · {first.compile_id}: {first.reason}"
        yield "recompiles", Text(words, style="yellow")
        if first.avoid:
            yield "", Text(f"avoid it: {first.avoid}", style="dim")


def _streams(report: Report) -> Iterator[Row]:
    plan = report.streams
    if plan is None:
        return
    words = [as_count(plan.streams, "stream"), as_count(plan.events, "event"), f"{len(plan.nodes)} nodes planned"]
    words.append("validated" if plan.validated else "not validated")
    if not plan.trials and plan.predicted_us is not None and plan.serial_us is not None:
        words.append(f"predicted {as_time(plan.predicted_us)} of {as_time(plan.serial_us)}")
    words += stream_words(plan)
    words += filter(None, [plan_words(plan)])
    yield "streams", Text(" · ".join(words))


def _numerics(report: Report) -> Iterator[Row]:
    found = report.numerics
    if found is None:
        return
    compared = f"{as_count(found.compared, 'value')} compared"
    error = "no finite difference" if found.max_abs_err is None else f"max. absolute error {found.max_abs_err:.3g}"
    if found.bitwise:
        yield "numerics", Text(f"equals {found.reference} bit for bit · {compared}", style="green")
    elif found.passed:
        yield "numerics", Text(f"equals {found.reference} within tolerance · {error} · {compared}", style="yellow")
    elif found.cause != "model":
        yield "numerics", Text(f"does not equal {found.reference} · {error} · {compared}", style=BAD)
    for problem in found.problems:
        yield "numerics", Text(problem, style="red")
    for note in numerics_notes(report):
        yield "numerics", Text(note, style="dim")
    if found.stride_mismatches:
        yield "numerics", Text(f"other strides than {found.reference} at {', '.join(found.stride_mismatches)}")


def _npu(report: Report) -> Iterator[Row]:
    npu = report.npu
    if npu is None:
        return
    words = [f"{npu.package} {npu.version} on {'a device' if npu.platform == 'device' else 'the stand-in'}"]
    words += [f"GE graph {ge.name}: {as_count(ge.nodes, 'node')}, {ge.shapes}" for ge in npu.ge_graphs]
    counted = (
        (npu.captures, "capture"),
        (npu.replays, "replay"),
        (npu.task_updates, "task update"),
        (npu.streams, "stream"),
        (npu.event_records, "event"),
    )
    if not npu.ge_graphs:
        words += [as_count(number, name) for number, name in counted if number]
    yield "torchair", Text(" · ".join(words))


def _sinking(report: Report) -> Iterator[Row]:
    """The verdicts and the first line that mends something; `npucompose explain` has it all."""
    facts = report.sinking
    if facts is None:
        return
    words = [verdict_words(name, verdict) for name, verdict in facts.verdicts().items()]
    yield "sinking", Text(" · ".join(words if facts.path is None else [path_words(facts), *words]))
    mended = next((step for step in facts.steps if step.status == "problem" and step.fix is not None), None)
    if mended is not None:
        yield "sinking", Text(f"{mended.id} -> {mended.fix}", style="yellow")


def _latency(report: Report) -> Iterator[Row]:
    times = report.stages.benchmark
    if times is None:
        return
    if is_wrong(report):
        yield "latency", Text(f"not shown: {why_untimed(report)}", style="red")
        return
    own = "detached replay" if times.candidate == "replay" else _choice(report.experiment, "mode")
    eager = times.baselines.get("eager")
    words = [f"p50 eager {as_time(eager.p50_us)}"] if eager is not None else []
    words.append(f"{'' if words else 'p50 '}{own} {as_time(times.p50_us)}")
    if "eager" in times.speedup:
        words.append(f"{times.speedup['eager']:.2f}x as fast")
    yield "latency", Text(" · ".join(words))
    yield from _compiled(times)
    if report.stages.capture is not None and report.stages.capture.why_attached:
        yield "latency", Text(f"no detached handle: {report.stages.capture.why_attached}")
    tail = [
        f"p90 {own} {as_time(times.p90_us)}",
        f"p99 {as_time(times.p99_us)}",
        as_count(len(times.samples_us), "sample"),
    ]
    yield "latency", Text(" · ".join(tail), style="dim")


def _capture(report: Report) -> Iterator[Row]:
    """Who replays, where it is not the one that was asked for."""
    capture = report.stages.capture
    if capture is not None and capture.why_executor:
        yield "capture", Text(f"{capture.executor} replays: {capture.why_executor}")


def _compiled(times: BenchmarkFacts) -> Iterator[Row]:
    through: Timing | None = times.baselines.get("compiled")
    if through is None:
        return
    words = f"p50 through torch.compile {as_time(through.p50_us)}"
    if "eager" in times.speedup_compiled:
        words += f" · {times.speedup_compiled['eager']:.2f}x as fast"
    yield "latency", Text(words)


def _memory(report: Report) -> Iterator[Row]:
    memory = report.memory
    if memory is None:
        return
    words: list[str] = []
    apart, taken = memory.pool_bytes, memory.taken_bytes
    if apart is not None and taken is not None:
        pool, beside = f"pool {as_bytes(taken)}", list[str]()
        if taken < apart:
            pool += " that all recordings share"
            beside.append(f"{as_bytes(apart)} apart")
        if memory.unplanned_bytes is not None:
            beside.append(f"{as_bytes(memory.unplanned_bytes)} without reuse")
        if memory.live_bytes is not None and taken == apart:  # a sum, like `apart`: says nothing of what is shared
            beside.append(f"{as_bytes(memory.live_bytes)} live at most")
        words.append(f"{pool} ({', '.join(beside)})" if beside else pool)
    if memory.peak_rss_bytes is not None:
        words.append(f"process peak {as_bytes(memory.peak_rss_bytes)}")
    if memory.device_peak_bytes is not None:
        beside = [f"{as_bytes(n)} {what}" for n, what in _of_device(memory) if n is not None]
        words.append(
            f"device peak {as_bytes(memory.device_peak_bytes)}" + (f" ({', '.join(beside)})" if beside else "")
        )
    if words:
        yield "memory", Text(" · ".join(words))


def _of_device(memory: Memory) -> tuple[tuple[int | None, str], ...]:
    return (memory.device_reserved_peak_bytes, "reserved"), (memory.device_total_bytes, "there")


def _stages(report: Report) -> Iterator[Row]:
    if not report.records:
        return
    words = [f"{one.stage} {as_time(one.seconds * 1e6)}{' (stored)' if one.reused else ''}" for one in report.records]
    yield "stages", Text(" · ".join(words))


def _effective(report: Report) -> Iterator[Row]:
    names = [one.option for one in report.effective if one.option != "target"]  # what an NPU refuses stands above
    if not names:
        return
    more = f" and {len(names) - OPTIONS_SHOWN} more" if len(names) > OPTIONS_SHOWN else ""
    words = f"{as_count(len(names), 'option')}: {', '.join(names[:OPTIONS_SHOWN])}{more}"
    yield "not acting", Text(words, style="yellow")
