"""Shows the events of a run: bars on a terminal, lines elsewhere, at least one every few seconds. Knows no stage."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import rich.progress as bars
from rich.console import Console
from rich.text import Text

from airflow_free.stage import Event

SILENT_S = 5.0
"""How long a log may say nothing while something runs."""
STARTING = "starting a worker"


class Progress:
    """`with Progress(console) as progress: run_in_worker(…, on_event=progress.show)`.

    In a log the same run reads

        compile: started
        compile: tracing the model … 5 s
        compile: done in 8.2 s
        capture: nothing changed, taken from the store
    """

    def __init__(self, console: Console, silent_s: float = SILENT_S) -> None:
        self.console = console
        self.tasks: dict[str, bars.TaskID] = {}
        self.bars = None
        self.log = None
        if console.is_terminal:
            self.bars = bars.Progress(
                bars.SpinnerColumn(finished_text=" "),
                bars.TextColumn("{task.description}", markup=False),
                bars.BarColumn(bar_width=24),
                bars.TextColumn("{task.fields[words]}", markup=False),
                bars.TimeElapsedColumn(),
                console=console,
                transient=True,
                refresh_per_second=4,  # the measured process shares the cores
            )
        else:
            self.log = _ProgressLog(console, silent_s)

    def __enter__(self) -> Progress:
        if self.bars is not None:
            self.bars.start()
            self._task("")
        elif self.log is not None:
            self.log.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()
        elif self.log is not None:
            self.log.end()

    def show(self, event: Event) -> None:
        if self.log is not None:
            self.log.show(event)
        elif event.kind == "note":
            self.console.print(Text(_line(event)))
        else:
            self._move(event)

    def _move(self, event: Event) -> None:
        assert self.bars is not None
        if "" in self.tasks and event.stage:
            self.bars.remove_task(self.tasks.pop(""))
        task = self._task(event.stage or next(reversed(self.tasks), ""))
        if event.kind == "progress":
            total = None if event.fraction is None else 1.0
            self.bars.update(task, total=total, completed=event.fraction, words=event.text)
        elif event.kind != "started":
            self.bars.update(task, total=1.0, completed=1.0, words=_words(event))

    def _task(self, stage: str) -> bars.TaskID:
        """The bar of a stage; before the first one begins, that of the worker's start."""
        assert self.bars is not None
        if stage not in self.tasks:
            words = "" if stage else STARTING
            self.tasks[stage] = self.bars.add_task(stage, total=None, words=words)
        return self.tasks[stage]


class _ProgressLog:
    """Lines: one for each change, and one whenever nothing was said for a while, with what is being done."""

    def __init__(self, console: Console, silent_s: float) -> None:
        self.console, self.silent_s = console, silent_s
        self.stage, self.activity = "", STARTING
        self.begun = self.said = time.monotonic()
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._beat, name="progress", daemon=True)

    def show(self, event: Event) -> None:
        with self.lock:
            if event.kind == "progress":
                self.activity = event.text or self.activity
                return
            if event.kind == "started":
                self.stage, self.activity, self.begun = event.stage, "", time.monotonic()
            if line := _line(event):
                self._print(line)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()

    def _beat(self) -> None:
        while not self.ended.wait(self.silent_s / 2):
            with self.lock:
                now = time.monotonic()
                if now - self.said >= self.silent_s:
                    what = ": ".join(filter(None, (self.stage, self.activity))) or "working"
                    try:
                        self._print(f"{what} … {now - self.begun:.0f} s")
                    except BrokenPipeError:
                        return  # the reader has enough; the next line of the run itself ends it

    def _print(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)
        self.console.file.flush()
        self.said = time.monotonic()


def _line(event: Event) -> str:
    words = _words(event)
    return f"{event.stage}: {words}" if event.stage and words else words


def _words(event: Event) -> str:
    """What a line says; nothing for mere progress, which would fill a log."""
    match event.kind:
        case "started":
            return "started"
        case "finished":
            return f"done in {event.seconds:.1f} s" if event.seconds is not None else "done"
        case "reused":
            return "nothing changed, taken from the store"
        case "failed":
            return "failed"
        case "note":
            return event.text
        case "progress":
            return ""
