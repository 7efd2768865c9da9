"""Shows the events of a run: bars on a terminal, one line for each stage elsewhere. Knows no stage."""

from __future__ import annotations

import rich.progress as bars
from rich.console import Console
from rich.text import Text

from airflow_free.stage import Event


class Progress:
    """`with Progress(console) as progress: run_in_worker(…, on_event=progress.show)`.

    In a log the same run reads

        compile: started
        compile: done in 3.2 s
        capture: nothing changed, taken from the store
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tasks: dict[str, bars.TaskID] = {}
        self.bars = None
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

    def __enter__(self) -> Progress:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def show(self, event: Event) -> None:
        words = _words(event)
        if self.bars is None or event.kind == "note":
            if words:
                self.console.print(Text(f"{event.stage}: {words}" if event.stage else words))
            return
        task = self.tasks.get(event.stage)
        if task is None:
            task = self.bars.add_task(event.stage, total=None, words="")
            self.tasks[event.stage] = task
        if event.kind == "progress":
            self.bars.update(task, total=1.0, completed=event.fraction)
        elif event.kind != "started":
            self.bars.update(task, total=1.0, completed=1.0, words=words)


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
