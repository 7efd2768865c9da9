"""What a person sees of a sweep while it runs: a live table on a terminal, a line for each end elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_free.sweep import SweepEvent
from npucompose.experiment.sweep.ledger import Entry
from npucompose.experiment.sweep.plan import Point
from npucompose.report.words import STATUS_STYLES, STATUS_WORDS, as_time
from npucompose.results.record import Status

LAST_SHOWN = 8
REFRESH_S = 0.25
"""Between two drawings: the measured process shares the cores."""


class SweepView:
    """`with SweepView(console, 60, plan.name) as view: run_sweep(…, listen=view.listen)`; equal points count once.

    In a log a sweep reads

    12/60  ok  model=add mode=eager seed=3 · p50 12.3 µs
    13/60  crashed  model=add mode=eager seed=4 · the worker died of SIGKILL and sent no result.
    """

    def __init__(self, console: Console, total: int, name: Callable[[Point], str]) -> None:
        self.console, self.total, self.name = console, total, name
        self.counts: Counter[Status] = Counter()
        self.kept = 0
        self.stages: dict[str, tuple[Point, str]] = {}
        self.last: list[tuple[Point, Entry]] = []
        self.drawn = 0.0
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> SweepView:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def listen(self, event: SweepEvent) -> None:
        key = event.point.key
        match event.kind:
            case "started":
                self.stages[key] = (event.point, "starts")
            case "stage":
                if event.event is not None and event.event.stage:
                    self.stages[key] = (event.point, event.event.stage)
            case "ended" | "kept":
                self._ended(event)
        self._show()

    def _ended(self, event: SweepEvent) -> None:
        assert event.entry is not None
        self.stages.pop(event.point.key, None)
        self.counts[event.entry.status] += 1
        self.kept += event.kind == "kept" and event.point.job is not None
        self.last = [*self.last, (event.point, event.entry)][-LAST_SHOWN:]
        if self.live is None and event.kind == "ended":
            done = f"{sum(self.counts.values())}/{self.total}  "
            self.console.print(Text(done) + self._line(event.point, event.entry), soft_wrap=True)

    def _line(self, point: Point, entry: Entry) -> Text:
        text = Text(f"{STATUS_WORDS[entry.status]}  ", style=STATUS_STYLES.get(entry.status, "bold red"))
        text.append(self.name(point), style="default")
        if entry.figures.p50_us is not None:
            text.append(f" · p50 {as_time(entry.figures.p50_us)}", style="default")
        if entry.error:
            text.append(f" · {entry.error}", style="default")
        return text

    def _show(self) -> None:
        now = time.monotonic()
        if self.live is None or now - self.drawn < REFRESH_S:
            return
        self.drawn = now
        table = Table.grid(padding=(0, 2, 0, 0))
        for point, entry in self.last:
            table.add_row(self._line(point, entry))
        for point, stage in self.stages.values():
            table.add_row(Text(f"{stage} … {self.name(point)}", style="cyan"))
        self.live.update(Group(table, Text(self.summary())), refresh=True)

    def summary(self) -> str:
        """`60 points: 52 ok, 3 illegal configuration, 2 crashed · 12 were done before`."""
        parts = ", ".join(f"{number} {STATUS_WORDS[status]}" for status, number in self.counts.most_common())
        left = self.total - sum(self.counts.values())
        words = f"{self.total} points: {parts or 'none done'}"
        words += f", {left} left" if left else ""
        return words + (f" · {self.kept} were done before" if self.kept else "")
