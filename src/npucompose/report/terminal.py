"""The whole account of a run, for a person (`npucompose report --full`). Pure: reads a Report.

    gpt_decode · target=cpu · mode=reduce-overhead · shapes=static             ok
      graphs    1 static graph · 134 -> 182 nodes
      numerics  equals eager bit for bit · 9 values compared
      latency   p50 eager 990.1 µs · replay without guards 517.0 µs · 1.91x as fast

The rows are templates/terminal.txt. No speed is printed beside results that are not those of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.npu.static_graph.explanation import path_words, verdicts_words
from npucompose.npu.torchair.records import NpuFacts
from npucompose.report import plan_words, words
from npucompose.report.generation import generation_cells, generation_memory, generation_sentence
from npucompose.results.graphs import npu_words
from npucompose.results.record import Report

BROKEN = "\x1e"
"""Stands for a line's end within a row."""


def render(report: Report, console: Console, path: Path | str | None = None) -> None:
    """Print the account; `path` is where report.json lies. 80 columns are enough; colours only on a terminal."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    status = Text(words.status_words(report), style=words.STATUS_STYLES.get(report.status, "bold red"))
    head.add_row(Text(_title(report), style="bold"), status)
    console.print(head)
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
