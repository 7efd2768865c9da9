"""What `npucompose explain --log … --dump …` prints of captures: error codes with rule, line and fix; captured graphs
with streams, events and kernels. Pure: reads results only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from npucompose.console import labelled
from npucompose.results.artefacts import CapturedGraph, CaptureError

NO_CODE = "no code"
SHOWN = 20
"""Errors, streams and kernels on the page; `--json` has all."""
MOST_RULES = 3
"""Rules that are shown whole for one error; of more the first is, and the others by name."""
Row = tuple[Text, Text, Text]


def title(errors: Sequence[CaptureError], captured: Sequence[CapturedGraph]) -> str:
    """What stands at the right of the head."""
    codes = ", ".join(dict.fromkeys(_code(error) for error in errors))
    if not captured:
        return codes or "no error code of the runtime"
    tasks = sum(graph.tasks for graph in captured)
    streams = sum(len(graph.streams) for graph in captured)
    return f"{codes + ' · ' if codes else ''}{tasks} tasks on {streams} streams"


def render(errors: Sequence[CaptureError], captured: Sequence[CapturedGraph], console: Console) -> None:
    """Nothing where there is nothing of it."""
    if not errors and not captured:
        return
    rows = (*_errors(errors), *(row for graph in captured for row in _graph(graph)))
    console.print(labelled(rows, labels=2))


def render_printed(lines: Sequence[str], console: Console) -> None:
    """What the model itself printed, as its own."""
    for line in lines:
        console.print(Text(f"  the model printed: {line}", style="dim"))


def _errors(errors: Sequence[CaptureError]) -> Iterator[Row]:
    for error in errors[:SHOWN]:
        yield Text(f"  line {error.line}"), Text(_code(error), style="bold red"), _error(error)
    if len(errors) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(errors) - SHOWN} more", style="dim")


def _code(error: CaptureError) -> str:
    return NO_CODE if error.code is None else str(error.code)


def _error(error: CaptureError) -> Text:
    many = len(error.among) > MOST_RULES
    words = Text(f"{_rules(error, many)} · {error.standing}")
    if error.times > 1:
        words.append(f" · {error.times} lines of the log")
    if error.said:
        words.append(f"\n{error.said}", style="dim")
    if error.means:
        words.append(f"\n{error.means}", style="dim")
    shown = 1 if many else len(error.among)
    words.append("".join(f"\nforbidden: {what}" for what in error.forbids[:shown]))
    if error.remark:
        words.append(f"\n{error.remark}", style="yellow")
    if error.after is not None:
        words.append(f"\nthe process had {error.after} before: this may be its consequence", style="yellow")
    if error.source is not None:
        words.append(f"\n{error.source}")
    words.append("".join(f"\n-> {fix}" for fix in (error.fixes[:1] if many else error.fixes)), style="bold")
    if many:
        words.append(_others(error))
    elif error.threads:
        words.append(f"\nsee {'; '.join(error.threads)}", style="dim")
    return words


def _rules(error: CaptureError, many: bool) -> str:
    if error.rule or not error.among:
        return error.rule or "no rule of a capture"
    return f"one of {len(error.among)} rules, {error.among[0]} first" if many else f"one of {', '.join(error.among)}"


def _others(error: CaptureError) -> str:
    """The other rules by name, those that the call fits apart."""
    fitting, others = error.fitting[1:], error.among[max(1, len(error.fitting)) :]
    lines = [f"\nthe call may be of {', '.join(fitting)} as well"] if fitting else []
    lines += [f"\n{'less likely' if error.fitting else 'or'}: {', '.join(others)}"] if others else []
    return f"{''.join(lines)}\ndocs/capture.md explains each; --json has their fixes and sources"


def _graph(graph: CapturedGraph) -> Iterator[Row]:
    events = [event for event in graph.events if event.recorded and event.waited]
    total = f"{graph.tasks} tasks on {len(graph.streams)} streams, {len(graph.kernels)} of them kernels"
    total += f", {len(events)} events between streams"
    yield Text("  graph"), Text("" if graph.model is None else str(graph.model)), Text(f"{graph.name}: {total}")
    for stream in graph.streams[:SHOWN]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(stream.kinds.items(), key=lambda one: -one[1]))
        goes_on = f"; goes on as stream {stream.continues}" if stream.continues is not None else ""
        yield Text("  stream"), Text(str(stream.stream)), Text(f"{stream.tasks} tasks: {kinds}{goes_on}")
    if len(graph.streams) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(graph.streams) - SHOWN} more streams", style="dim")
    for event in events[:SHOWN]:
        yield Text("  event"), Text(event.event), Text(f"{_names(event.recorded)} -> {_names(event.waited)}")
    if len(events) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(events) - SHOWN} more events", style="dim")
    for remark in graph.remarks:
        yield Text("  note"), Text(""), Text(remark, style="yellow")
    yield from _kernels(graph)


def _kernels(graph: CapturedGraph) -> Iterator[Row]:
    tied = [kernel for kernel in graph.kernels if kernel.node is not None]
    for kernel in tied[:SHOWN]:
        where = f"{kernel.node}{f', {kernel.source}' if kernel.source else ''}"
        yield Text("  kernel"), Text(f"{kernel.stream}.{kernel.task}"), Text(f"{kernel.operator}: {where}")
    if len(tied) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(tied) - SHOWN} more with a line", style="dim")
    counts = Counter(kernel.operator for kernel in graph.kernels if kernel.node is None)
    if counts:
        what = "kernels" if not tied else "others"
        words = ", ".join(f"{operator} {count}" for operator, count in counts.most_common(SHOWN))
        yield Text(f"  {what}"), Text(""), Text(words, style="dim")


def _names(streams: Sequence[int]) -> str:
    return f"stream {', '.join(map(str, streams))}"
