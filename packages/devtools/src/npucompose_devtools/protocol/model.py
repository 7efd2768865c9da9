"""A replay protocol as data: what host threads call, what captured graphs do, on which streams and events.

A step is a line of text: `replay decode on main`, `wait replayed on update`, `run copy on main reads x writes y`.

The semantics are the public runtime's (CANN's pages on aclmdlRI* and aclrt*Event; torch_npu 2.13.0, npu/streams.py):

- A stream runs what was submitted to it one after the other; a submission returns at once.
- An ordinary event is waited for as it was last recorded when the wait was submitted; never recorded, it is no wait.
- An external event is a flag that stays: a wait may come before the record, holds the stream until the flag is set and
  leaves it set; only a reset clears it, and a second record of a set flag leaves no trace.
- A task's new parameters are written by the stream that updates, when it gets there, and hold until the next update.
- Between begin and end of an update a stream takes new parameters of that task and nothing else; whatever else is
  called then is refused with 107033, and the thread that called goes no further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

from attrs import frozen

from npucompose.errors import ConfigError, listed, raise_for, unknown
from npucompose.table.options import option

Verb = Literal[
    "run", "replay", "record", "wait", "reset", "begin update", "update", "end update", "synchronise", "write", "read",
    "acquire", "release",
]  # fmt: skip
VERBS: tuple[Verb, ...] = get_args(Verb)
EventKind = Literal["ordinary", "external"]
IN_A_GRAPH: tuple[Verb, ...] = ("run", "record", "wait", "reset")
ON_A_STREAM: tuple[Verb, ...] = (
    "run", "replay", "record", "wait", "reset", "begin update", "update", "end update",
)  # fmt: skip
WAITS: tuple[Verb, ...] = ("wait", "synchronise", "acquire")
"""Steps that hold somebody back."""
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_STEP = re.compile(
    rf"(?P<verb>{'|'.join(VERBS)})(?: (?P<name>(?!on |reads |writes ){NAME}(?:\.{NAME})?))?(?: on (?P<stream>{NAME}))?"
    rf"(?: reads (?P<reads>{NAME}(?:, ?{NAME})*))?(?: writes (?P<writes>{NAME}(?:, ?{NAME})*))?"
)
MOST_STEPS = 5_000
"""Of all threads together, their loops unrolled and each replay with its graph's steps."""
MOST_NAMES = 64
"""Threads and streams, and each of the other kinds."""


@frozen(kw_only=True)
class Step:
    """`Step.from_text("wait replayed on update")`: who waits (a stream) for what (an event)."""

    verb: Verb
    name: str = ""
    """The event, buffer, graph or semaphore; `graph.task` of an update; of `run` what the task is called."""
    stream: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Step:
        """ConfigError for a line that is no step."""
        found = _STEP.fullmatch(" ".join(text.split()))
        if found is None:
            raise ConfigError(f"'{text}' is no step: it begins with {listed(VERBS)}, as in `replay decode on main`.")
        reads, writes = (tuple(re.findall(NAME, found[part] or "")) for part in ("reads", "writes"))
        return cls(verb=found["verb"], name=found["name"] or "", stream=found["stream"], reads=reads, writes=writes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        on = f" on {self.stream}" if self.stream else ""
        reads = f" reads {', '.join(self.reads)}" if self.reads else ""
        return (
            f"{self.verb} {self.name}".rstrip() + on + reads + (f" writes {', '.join(self.writes)}" * bool(self.writes))
        )


@frozen(kw_only=True)
class HostThread:
    steps: tuple[Step, ...]
    repeat: int = option(1, "iterations", ge=1)


@frozen(kw_only=True)
class Declared:
    """What a protocol and its file have alike."""

    about: str = ""
    sources: tuple[str, ...] = ()
    streams: tuple[str, ...]
    depth: Mapping[str, int] = option(factory=dict)
    """{stream: tasks that it holds before a submission has to wait}; of others as many as come."""
    events: Mapping[str, EventKind] = option(factory=dict)
    semaphores: Mapping[str, int] = option(factory=dict)
    """{name: how often it can be acquired before the first release}; a lock has 1."""


@frozen(kw_only=True)
class Protocol(Declared):
    """Refused where it is made: a name that is not declared, a step that its place does not take."""

    graphs: Mapping[str, tuple[Step, ...]] = option(factory=dict)
    """What a capture holds, one task after the other."""
    threads: Mapping[str, HostThread]

    def __attrs_post_init__(self) -> None:
        wrong = (f"{where}: {problem}" for where, step in self.places() for problem in _wrong(self, where, step))
        raise_for([*_too_large(self), *_wrong_numbers(self), *wrong])

    def places(self) -> Iterator[tuple[str, Step]]:
        """(`threads.host.steps[3]` or `graphs.decode[0]`, the step)."""
        for graph, tasks in self.graphs.items():
            yield from ((f"graphs.{graph}[{at}]", task) for at, task in enumerate(tasks))
        for name, thread in self.threads.items():
            yield from ((f"threads.{name}.steps[{at}]", step) for at, step in enumerate(thread.steps))

    @property
    def buffers(self) -> tuple[str, ...]:
        """What tasks and threads read and write, by name."""
        steps = [step for _, step in self.places()]
        named = {step.name for step in steps if step.verb in ("write", "read")}
        return tuple(sorted(named.union(*({*step.reads, *step.writes} for step in steps))))

    @property
    def updated(self) -> frozenset[str]:
        """The tasks (`graph.task`) that get new parameters."""
        return frozenset(step.name for _, step in self.places() if step.verb == "update")


def _too_large(protocol: Protocol) -> Iterator[str]:
    kinds = ("threads", "streams", "events", "semaphores", "graphs", "buffers")
    for kind in kinds:
        if len(getattr(protocol, kind)) > MOST_NAMES:
            yield f"{kind}: {len(getattr(protocol, kind))} names; at most {MOST_NAMES} are explored."
    steps = sum(
        thread.repeat * len(protocol.graphs.get(step.name, ())) if step.verb == "replay" else thread.repeat
        for thread in protocol.threads.values()
        for step in thread.steps
    )
    if steps > MOST_STEPS:
        yield f"threads: {steps:,} steps in all iterations; at most {MOST_STEPS:,} are explored."


def _wrong_numbers(protocol: Protocol) -> Iterator[str]:
    for stream, depth in protocol.depth.items():
        if stream not in protocol.streams:
            yield unknown("stream", stream, protocol.streams, "depth")
        if depth < 1:
            yield f"depth.{stream}: {depth}; a stream holds at least one task."
    for name, count in protocol.semaphores.items():
        if count < 0:
            yield f"semaphores.{name}: {count}; it can be acquired 0 times or more before the first release."


def _wrong(protocol: Protocol, where: str, step: Step) -> Iterator[str]:
    in_a_graph = where.startswith("graphs.")
    if in_a_graph and (step.verb not in IN_A_GRAPH or step.stream):
        yield f"'{step}' cannot be captured: a graph's steps are {listed(IN_A_GRAPH)}, without a stream."
    elif not in_a_graph and (step.verb in ON_A_STREAM) != (step.stream is not None):
        yield f"'{step}' {'has to say on which stream' if step.stream is None else 'takes no stream'}."
    elif (step.reads or step.writes) and step.verb != "run":
        yield f"'{step}': only `run` reads and writes."
    elif (step.verb == "end update") == bool(step.name):
        yield f"'{step}' {'takes no name' if step.name else 'has to say what'}."
    else:
        yield from _unknown_names(protocol, step, in_a_graph=in_a_graph)


def _unknown_names(protocol: Protocol, step: Step, *, in_a_graph: bool) -> Iterator[str]:
    for kind, name, choices in _named(protocol, step):
        if name not in choices:
            yield unknown(kind, name, tuple(choices))
    event = protocol.events.get(step.name)
    if event == "ordinary" and ((in_a_graph and step.verb in ("record", "wait")) or step.verb == "reset"):
        where = "a captured ordinary event orders only its own graph" if in_a_graph else "an ordinary event has no flag"
        yield f"'{step}': {where}; declare {step.name} external."


def _named(protocol: Protocol, step: Step) -> Iterator[tuple[str, str, Iterable[str]]]:
    """(kind, name, what there is) of each name that has to be declared."""
    if step.stream is not None:
        yield "stream", step.stream, protocol.streams
    if step.verb in ("record", "wait", "reset"):
        yield "event", step.name, protocol.events
    elif step.verb == "synchronise":
        ordinary = [name for name, kind in protocol.events.items() if kind == "ordinary"]
        yield "stream or ordinary event", step.name, (*protocol.streams, *ordinary)
    elif step.verb in ("acquire", "release"):
        yield "semaphore", step.name, protocol.semaphores
    elif step.verb == "replay":
        yield "graph", step.name, protocol.graphs
    elif step.verb in ("begin update", "update"):
        tasks = [
            f"{graph}.{task.name}" for graph, steps in protocol.graphs.items() for task in steps if task.verb == "run"
        ]
        yield "task", step.name, tasks
