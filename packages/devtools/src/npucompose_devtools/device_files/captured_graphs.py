"""A captured graph as `NPUGraph.debug_dump` writes it (aclmdlRIDebugJsonPrint): Chrome's trace events, one a task.

Streams are threads of the trace (`stream7`). A name that ends in a number is of an event, a notification or an address:
`EVENT_RECORD_12`, `EVENT_WAIT_12`, `MEM_WRITE_VALUE_…`. `.aligned.json`, which torch_npu writes beside it, has the same
tasks and arrows between them, which are left out here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.results.artefacts import CapturedEvent, CapturedGraph, CapturedKernel, CapturedStream, FileFacts
from npucompose_devtools.device_files.kernels import operator_type, torch_operator

FORM = "a captured graph that torch_npu's NPUGraph.debug_dump wrote (JSON)"
MOST_TASKS = 1_000_000
MOST_SHOWN = 12
_BEGINNING = re.compile(r'\s*\[\s*\{\s*"name"\s*:')
_TRAILING_COMMA = re.compile(r",\s*\]\s*\Z")
"""The runtime ends a file so whose last stream has no task."""
_RECORD = re.compile(r"(?:EVENT_RECORD|NOTIFY_RECORD|MEM_WRITE_VALUE)\w{0,200}?_(?P<event>\d{1,20})$")
_WAIT = re.compile(r"(?:EVENT_WAIT|NOTIFY_WAIT|MEM_WAIT_VALUE)\w{0,200}?_(?P<event>\d{1,20})$")
_KERNEL = re.compile(r"^KERNEL_|^AICPU_KERNEL|^FFTS")


@frozen
class _Task:
    name: str
    type: str
    model: int | None
    stream: int
    task: int
    blocks: int | None
    active: int | None


def read(text: str, name: str) -> FileFacts | None:
    """The graph; None for a text that is no such file. ConfigError for one that is cut off or holds something else."""
    if not _BEGINNING.match(text[:4_000]) or '"Task Type"' not in text:
        return None
    try:
        events: Any = json.loads(_TRAILING_COMMA.sub("]", text))
    except ValueError as error:
        raise ConfigError(f"{name} is no whole JSON: {error}. Write the dump again, or copy all of it.") from error
    if not isinstance(events, list) or len(cast("list[Any]", events)) > MOST_TASKS:
        raise ConfigError(f"{name} holds no list of at most {MOST_TASKS:,} tasks.")
    tasks = [task for event in cast("list[Any]", events) if (task := _task(event, name)) is not None]
    if not tasks:
        raise ConfigError(f"{name} holds no task: the graph was dumped before anything was captured.")
    return FileFacts(captured=(_graph(tasks, name),))


def _task(event: Any, name: str) -> _Task | None:
    """None for what is drawn beside the tasks."""
    args: Any = event.get("args") if isinstance(event, dict) else None
    if not isinstance(args, Mapping) or "Task Type" not in args:
        return None
    try:
        return _Task(
            name=str(cast("Any", event)["name"]),
            type=str(args["Task Type"]),
            model=_number(args.get("Model Id")),
            stream=int(args["Stream Id"]),
            task=int(args["Task Id"]),
            blocks=_number(args.get("Numblocks")),
            active=_number(args.get("Active Stream Id")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{name} holds a task without a name, a stream or a task number: {str(event)[:120]}."
        ) from error


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _graph(tasks: Sequence[_Task], name: str) -> CapturedGraph:
    streams: dict[int, list[_Task]] = {}
    for task in tasks:
        streams.setdefault(task.stream, []).append(task)
    found = tuple(
        CapturedStream(
            stream=stream,
            tasks=len(its),
            kinds=Counter(task.type for task in its),
            continues=next((task.active for task in its if task.active is not None), None),
        )
        for stream, its in streams.items()
    )
    events = tuple(_events(tasks))
    return CapturedGraph(
        name=name,
        model=tasks[0].model,
        streams=found,
        events=events,
        kernels=tuple(_kernels(tasks)),
        remarks=tuple(_remarks(found, events)),
    )


def _in_order(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def _kernels(tasks: Sequence[_Task]) -> Iterator[CapturedKernel]:
    for task in tasks:
        if _KERNEL.match(task.type):
            operator = operator_type(task.name) or task.name
            yield CapturedKernel(
                stream=task.stream,
                task=task.task,
                name=task.name,
                operator=operator,
                computes=torch_operator(operator),
                blocks=task.blocks,
            )


def _events(tasks: Sequence[_Task]) -> Iterator[CapturedEvent]:
    recorded: dict[str, list[int]] = {}
    waited: dict[str, list[int]] = {}
    for task in tasks:
        for pattern, into in ((_RECORD, recorded), (_WAIT, waited)):
            if found := pattern.search(task.name):
                into.setdefault(found["event"], []).append(task.stream)
    for event in dict.fromkeys((*recorded, *waited)):
        yield CapturedEvent(
            event=event,
            recorded=tuple(_in_order(recorded.get(event, ()))),
            waited=tuple(_in_order(waited.get(event, ()))),
        )


def _remarks(streams: Sequence[CapturedStream], events: Sequence[CapturedEvent]) -> list[str]:
    remarks: list[str] = []
    continued = {one.continues for one in streams if one.continues is not None}
    cascades = [f"{one.stream} -> {one.continues}" for one in streams if one.continues is not None]
    if cascades:
        remarks.append(
            f"{len(cascades)} streams ran full and go on in another one, which counts, too: {_some(cascades)}"
        )
    outside = [event.event for event in events if not event.recorded]
    if outside:
        remarks.append(
            f"{len(outside)} events are waited for and recorded nowhere in the graph, so that a replay waits for "
            f"what lies outside: {_some(outside)}"
        )
    unused = [event.event for event in events if not event.waited]
    if unused:
        remarks.append(f"{len(unused)} events are recorded and waited for nowhere in the graph: {_some(unused)}")
    bound = {stream for event in events for stream in (*event.recorded, *event.waited)}
    loose = [str(one.stream) for one in streams if one.stream not in bound and one.stream not in continued]
    if len(streams) > 1 and loose:
        remarks.append(f"{len(loose)} streams record no event and wait for none: {_some(loose)}")
    return remarks


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
