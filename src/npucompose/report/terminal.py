"""What is printed of a run: six lines and what needs attention (`render_summary`), or the whole account (`npucompose
report --full`). Pure: reads a Report.

    result    ok · gpt_decode · cpu · reduce-overhead · static · equals eager bit for bit
    speed-up  3.05x over eager: median ratio of 493 pairs of calls made in turn, replay without guards
    streams   applied (2 streams, 3 events): 1.20x over one stream, 251.0 µs against 302.0 µs; predicted 1.15x
    memory    pool 9.5 KiB (158.8 KiB without reuse, 9.5 KiB live at most) · process peak 395.0 MiB
    report    outputs/2026-11-22/10-59-50/report.html
    next      npucompose report --full outputs/2026-11-22/10-59-50

    gpt_decode · target=cpu · mode=reduce-overhead · shapes=static             ok
      graphs    1 static graph · 134 -> 182 nodes
      numerics  equals eager bit for bit · 9 values compared
      latency   p50 eager 990.1 µs · replay without guards 517.0 µs · 1.91x as fast

A line about what the mode does not do, or the pipeline did not ask, is left out. The lines are templates/summary.txt
and templates/terminal.txt. No speed is printed beside results that are not those of the reference.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.console import head
from npucompose.npu.static_graph.explanation import path_words, verdicts_words
from npucompose.npu.torchair.records import NpuFacts
from npucompose.report import plan_words, words
from npucompose.report.generation import generation_cells, generation_memory, generation_sentence
from npucompose.report.json import PAGE
from npucompose.report.words import builds_ge_graphs
from npucompose.results.graphs import npu_words
from npucompose.results.record import Report
from npucompose.results.streams import StreamFacts

BROKEN = "\x1e"
"""Stands for a line's end within a row."""


def render(report: Report, console: Console, path: Path | str | None = None) -> None:
    """Print the account; `path` is where report.json lies. 80 columns are enough; colours only on a terminal."""
    status = Text(words.status_words(report), style=words.STATUS_STYLES.get(report.status, "bold red"))
    console.print(head(_title(report), status))
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(style="dim", no_wrap=True)
    body.add_column(overflow="fold")
    before = ""
    for label, text in rows("terminal.txt", report=report):
        body.add_row("" if label == before else f"  {label}", text)
        before = label
    console.print(body)
    if path is not None:
        console.print(Text(f"  report: {path}"), soft_wrap=True)  # one line however long, so that it can be copied


def rows(template: str, **values: object) -> Iterator[tuple[str, Text]]:
    """(label, words) of each row of a template: a row is a line `label|style|words`."""
    for row in filter(None, _environment().get_template(template).render(values).split("\n")):
        label, style, text = row.split("|", 2)
        yield label, Text(text.replace(BROKEN, "\n"), style=style)


@cache
def _environment() -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        finalize=_in_a_row,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    ours = (counted, path_words, verdicts_words, npu_words, generation_sentence, generation_memory, generation_cells)
    made.globals.update({**vars(words), **vars(plan_words), **{one.__name__: one for one in ours}})  # pyright: ignore[reportUnknownMemberType]
    return made


def _in_a_row(value: Any) -> str:
    return str(value).replace("\n", BROKEN)


def _title(report: Report) -> str:
    found = [
        words.choice(report, "model"),
        *(f"{group}={words.choice(report, group)}" for group in ("target", "mode", "shapes")),
    ]
    return " · ".join(known for known in found if not known.endswith("?"))


def counted(npu: NpuFacts) -> list[str]:
    """What TorchAir did on the device, as far as somebody counted: `2 captures`, `3 events`."""
    numbers = {
        "capture": npu.captures,
        "replay": npu.replays,
        "task update": npu.task_updates,
        "stream": npu.streams,
        "event": npu.event_records,
    }
    return [words.as_count(number, name) for name, number in numbers.items() if number]


SEARCHABLE = "passes=stream_plan"
MOST_NOTES = 2
"""Options without effect that are named with the reason."""
COPIED = ("profile", "report", "log", "next")
"""Lines that are never broken, so that they can be copied; into a pipe or a file none is."""


@frozen(kw_only=True)
class RunCommand:
    """The command that made the run: where its folder is, and what may be typed again."""

    folder: Path = Path()
    program: str = "npucompose run"
    overrides: Sequence[str] = ()

    def again(self, command: str, *more: str) -> str:
        """`command` with the same choices: `npucompose bisect mode=eager`."""
        return " ".join([command, *map(shlex.quote, (*self.overrides, *more))])

    @property
    def run(self) -> str:
        return f"python {self.program}" if self.program.endswith(".py") else self.program


def render_summary(report: Report, console: Console, asked: RunCommand) -> None:
    """Print the lines, broken at a terminal's width; colours only there."""
    for label, text in rows("summary.txt", report=report, **_words(report, asked)):
        if label in COPIED or not console.is_terminal:
            console.print(Text.assemble((f"{label:8}  ", "dim"), text), soft_wrap=True)
            continue
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(style="dim", no_wrap=True, min_width=8)
        line.add_column(overflow="fold")
        line.add_row(label, text)
        console.print(line)


def _words(report: Report, asked: RunCommand) -> dict[str, object]:
    return {
        "title": " · ".join(words.title(report)),
        "streams_line": "" if report.streams is None or words.is_wrong(report) else stream_line(report.streams),
        "ge_graphs": builds_ge_graphs(report),
        "attention": list(attention(report)),
        "page": asked.folder / PAGE,
        "log": asked.folder / "run.log",
        "next_command": next_command(report, asked),
    }


def stream_line(plan: StreamFacts) -> str:
    """`applied: 1.20x over one stream, 251.0 µs against 302.0 µs; predicted 1.15x`, and why a plan is not applied."""
    timed = [one for one in plan.trials if one.turns and one.plan_us and one.one_stream_us]
    took, alone = sum(one.plan_us or 0 for one in timed), sum(one.one_stream_us or 0 for one in timed)
    if not timed and plan.measured_us and plan.measured_serial_us:
        took, alone = plan.measured_us, plan.measured_serial_us
    predicted = plan.serial_us / plan.predicted_us if plan.serial_us and plan.predicted_us else None
    shape = f"{words.as_count(plan.streams, 'stream')}, {words.as_count(plan.events, 'event')}"
    head = f"applied ({shape})" if plan.applied else "not applied"
    if not took or not alone:
        why = plan.why if plan.why and not plan.applied else ""
        guess = f"predicted {predicted:.2f}x over one stream, not measured" if predicted is not None else ""
        return f"{head}: {why or guess}" if why or guess else head
    gain = f"{alone / took:.2f}x over one stream, {words.as_time(took)} against {words.as_time(alone)}"
    return f"{head}: {gain}" + (f"; predicted {predicted:.2f}x" if predicted is not None else "")


def attention(report: Report) -> Iterator[str]:
    """What a person should know although nothing failed; the whole account has the rest."""
    capture = report.stages.capture
    if capture is not None and capture.why_executor:
        yield f"{capture.executor} replays: {capture.why_executor}"
    if report.recompiles:
        first = report.recompiles[0]
        advice = f"; avoid it: {first.avoid}" if first.avoid else ""
        yield f"{words.as_count(len(report.recompiles), 'recompilation')}: {first.reason}{advice}"
    yield from words.partition_words(report)
    yield from words.overwrites_words(report)
    refused = [one for graph in report.graphs for one in graph.npu_refuses]
    if refused:
        yield npu_words(refused)
    yield from words.not_written_words(report)
    idle = [one for one in report.effective if one.option not in ("target", "mode.name")]
    yield from (one.why for one in report.effective if one.option == "mode.name")
    if len(idle) <= MOST_NOTES:
        yield from (f"{one.option} has no effect: {one.why}" for one in idle)
    else:
        names = ", ".join(one.option for one in idle[:MOST_NOTES])
        yield f"{len(idle)} options have no effect here: {names} and {len(idle) - MOST_NOTES} more"


def next_command(report: Report, asked: RunCommand) -> str:
    """What to type next: what finds the cause where something is wrong, else what shows or gains more."""
    full = f"npucompose report --full {shlex.quote(str(asked.folder))}"
    if report.status == "numerics_failed":
        of_a_pass = report.numerics is not None and report.numerics.cause == "passes"
        return asked.again("npucompose bisect") if of_a_pass else full
    if report.status != "ok":
        return full if report.status in ("uncompiled", "expect_failed") else asked.again(asked.run, "debug=true")
    if builds_ge_graphs(report) and report.sinking is not None and report.sinking.blame:
        return asked.again("npucompose explain")
    captured, planned = report.stages.capture, report.streams is not None
    if captured is not None and not planned and not report.passes and not report.reused:
        return asked.again(asked.run, SEARCHABLE)
    return full
