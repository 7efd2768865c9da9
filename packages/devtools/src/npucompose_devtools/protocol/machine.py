"""A protocol as a machine: states, whose turn it may be in each, and what a turn does.

Whose turn: each host thread and each stream has at most one next step, so that an execution is a sequence of names. A
state is a tuple of numbers; `Machine` holds what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attrs import define, field, frozen

from npucompose_devtools.protocol.model import Protocol, Step

FindingKind = Literal["deadlock", "stale result", "stale input", "stale parameters", "refused call"]
TASK_GROUP = 107033
"""What the runtime answers to a call that does not fit the state of a task group."""
NEVER = 0
"""The version of a buffer that nobody has written."""


class State(NamedTuple):
    at: tuple[int, ...]
    """The next step of each thread; behind its last one, where a call was refused, one further."""
    queues: tuple[tuple[int, ...], ...]
    """Of each stream: tasks by number, the next one first."""
    flags: tuple[bool, ...]
    """Of external events."""
    recorded: tuple[int, ...]
    """Of ordinary events: how many records were submitted."""
    versions: tuple[int, ...]
    """Of each buffer, parameters among them: who wrote it last, in which iteration."""
    semaphores: tuple[int, ...]
    groups: tuple[int, ...]
    """Of each stream: which task's update is open; -1: none."""


class Submission(NamedTuple):
    """One task that a call puts into a queue."""

    step: Step
    event: int
    """-1: none."""
    reads: tuple[int, ...]
    """Buffers."""
    writes: tuple[int, ...]


@frozen(kw_only=True)
class Call:
    """A step of a thread in one iteration, its names as numbers."""

    step: Step
    thread: int
    iteration: int
    version: int
    submits: tuple[Submission, ...] = ()
    stream: int = -1
    name: int = -1
    """The event, buffer, semaphore, or task of an update."""


@frozen(kw_only=True)
class Task:
    """One task in a stream's queue; `number` is which record of an ordinary event is waited for, or is made."""

    step: Step
    thread: int
    iteration: int
    version: int
    event: int = -1
    external: bool = False
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    number: int = 0


@frozen(kw_only=True)
class Problem:
    """What one turn did that it must not: a kind, a sentence."""

    kind: FindingKind
    sentence: str


@define
class Machine:
    """`Machine(protocol)`; process p is thread p, or stream p - len(threads)."""

    protocol: Protocol
    threads: tuple[str, ...] = field(init=False)
    streams: tuple[str, ...] = field(init=False)
    events: tuple[str, ...] = field(init=False)
    buffers: tuple[str, ...] = field(init=False)
    """With `graph.task`, an updated task's parameters, behind those that the protocol names."""
    semaphores: tuple[str, ...] = field(init=False)
    calls: tuple[tuple[Call, ...], ...] = field(init=False)
    """Of each thread, its loop unrolled."""
    tasks: list[Task] = field(factory=list[Task], init=False)
    _numbers: dict[tuple[int, ...], int] = field(factory=dict[tuple[int, ...], int], init=False)
    _external: tuple[bool, ...] = field(init=False)
    _depth: tuple[int | None, ...] = field(init=False)
    _writers: tuple[frozenset[int], ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        protocol = self.protocol
        self.threads, self.streams = tuple(protocol.threads), tuple(protocol.streams)
        self.events, self.semaphores = tuple(protocol.events), tuple(protocol.semaphores)
        self.buffers = (*protocol.buffers, *sorted(protocol.updated))
        self._external = tuple(kind == "external" for kind in protocol.events.values())
        self._depth = tuple(protocol.depth.get(stream) for stream in self.streams)
        self.calls = tuple(
            tuple(self._call(step, at, iteration) for iteration in range(thread.repeat) for step in thread.steps)
            for at, thread in enumerate(protocol.threads.values())
        )
        self._writers = tuple(frozenset(self._writers_of(at)) for at in range(len(self.buffers)))

    @property
    def processes(self) -> tuple[str, ...]:
        return (*self.threads, *self.streams)

    def is_external(self, event: int) -> bool:
        return self._external[event]

    def start(self) -> State:
        streams = len(self.streams)
        return State(
            at=(0,) * len(self.threads),
            queues=((),) * streams,
            flags=(False,) * len(self.events),
            recorded=(0,) * len(self.events),
            versions=(NEVER,) * len(self.buffers),
            semaphores=tuple(self.protocol.semaphores.values()),
            groups=(-1,) * streams,
        )

    def call_of(self, state: State, thread: int) -> Call | None:
        """The next step of a thread; None behind its last one and where a call was refused."""
        at = state.at[thread]
        return self.calls[thread][at] if at < len(self.calls[thread]) else None

    def task_of(self, state: State, stream: int) -> Task | None:
        queue = state.queues[stream]
        return self.tasks[queue[0]] if queue else None

    def is_done(self, state: State) -> bool:
        return not any(state.queues) and all(at >= len(calls) for at, calls in zip(state.at, self.calls, strict=True))

    def ready(self, state: State) -> list[int]:
        """Whose turn it may be."""
        threads = len(self.threads)
        found = [at for at in range(threads) if self._may_call(state, self.call_of(state, at))]
        return found + [
            threads + at for at in range(len(self.streams)) if self._may_run(state, self.task_of(state, at))
        ]

    def _may_call(self, state: State, call: Call | None) -> bool:
        if call is None:
            return False
        if call.step.verb == "acquire":
            return state.semaphores[call.name] > 0
        if call.step.verb == "synchronise":
            if call.stream >= 0:
                return not state.queues[call.stream]
            return not self.pending(state, call.name, state.recorded[call.name])
        depth = self._depth[call.stream] if call.submits else None
        return depth is None or len(state.queues[call.stream]) < depth

    def _may_run(self, state: State, task: Task | None) -> bool:
        if task is None:
            return False
        if task.step.verb != "wait":
            return True
        return state.flags[task.event] if task.external else not self.pending(state, task.event, task.number)

    def pending(self, state: State, event: int, number: int) -> bool:
        """Whether a record of an ordinary event is still in a queue."""
        return bool(number) and self.holder(state, event, number) is not None

    def holder(self, state: State, event: int, number: int) -> int | None:
        """The stream whose queue has that record."""
        for stream, queue in enumerate(state.queues):
            for task in map(self.tasks.__getitem__, queue):
                if task.event == event and task.number == number and task.step.verb == "record":
                    return stream
        return None

    def turn(self, state: State, process: int) -> tuple[State, Problem | None]:
        """What comes of it; `process` is one of `ready(state)`."""
        if process < len(self.threads):
            return self._called(state, self.calls[process][state.at[process]])
        return self._ran(state, process - len(self.threads))

    def _called(self, state: State, call: Call) -> tuple[State, Problem | None]:
        verb, at = call.step.verb, _with(state.at, call.thread, state.at[call.thread] + 1)
        if refused := self._refused(state, call):
            over = _with(state.at, call.thread, len(self.calls[call.thread]) + 1)
            return state._replace(at=over), Problem(kind="refused call", sentence=refused)
        if verb == "read":
            return state._replace(at=at), self._stale(state, call, call.name, "stale result")
        if verb == "write":
            return state._replace(at=at, versions=_with(state.versions, call.name, call.version)), None
        if verb in ("acquire", "release"):
            count = state.semaphores[call.name] + (1 if verb == "release" else -1)
            return state._replace(at=at, semaphores=_with(state.semaphores, call.name, count)), None
        if verb in ("begin update", "end update"):
            group = call.name if verb == "begin update" else -1
            return state._replace(at=at, groups=_with(state.groups, call.stream, group)), None
        return self._submitted(state._replace(at=at), call), None

    def _submitted(self, state: State, call: Call) -> State:
        if not call.submits:
            return state
        queue, recorded = list(state.queues[call.stream]), state.recorded
        for at, (step, event, _, _) in enumerate(call.submits):
            ordinary = event >= 0 and not self._external[event]
            if ordinary and step.verb == "record":
                recorded = _with(recorded, event, recorded[event] + 1)
            queue.append(self._number(call, at, recorded[event] if ordinary else 0))
        return state._replace(queues=_with(state.queues, call.stream, tuple(queue)), recorded=recorded)

    def _number(self, call: Call, at: int, number: int) -> int:
        """Of the task that is submitted; the same one has the same number in every execution."""
        key = (id(call), at, number)
        if key not in self._numbers:
            step, event, reads, writes = call.submits[at]
            self._numbers[key] = len(self.tasks)
            self.tasks.append(
                Task(
                    step=step,
                    thread=call.thread,
                    iteration=call.iteration,
                    version=call.version,
                    event=event,
                    external=event >= 0 and self._external[event],
                    reads=reads,
                    writes=writes,
                    number=number,
                )
            )
        return self._numbers[key]

    def _refused(self, state: State, call: Call) -> str | None:
        """Why the runtime does not take a call while an update is open, or none is."""
        if call.stream < 0 or call.step.verb == "synchronise":
            return None
        verb, group, stream = call.step.verb, state.groups[call.stream], self.streams[call.stream]
        if group < 0 and verb in ("update", "end update"):
            return f"no update is open on {stream} ({TASK_GROUP})"
        if group >= 0 and not (verb == "end update" or (verb == "update" and call.name == group)):
            return f"the update of {self.buffers[group]} is still open on {stream} ({TASK_GROUP})"
        return None

    def _ran(self, state: State, stream: int) -> tuple[State, Problem | None]:
        task = self.tasks[state.queues[stream][0]]
        state = state._replace(queues=_with(state.queues, stream, state.queues[stream][1:]))
        if task.step.verb == "run" or task.step.verb == "update":
            problem = next((p for read in task.reads if (p := self._stale(state, task, read, "stale input"))), None)
            versions = list(state.versions)
            for written in task.writes:
                versions[written] = task.version
            return state._replace(versions=tuple(versions)), problem
        if task.external and task.step.verb != "wait":
            return state._replace(flags=_with(state.flags, task.event, task.step.verb == "record")), None
        return state, None

    def _stale(self, state: State, reader: Call | Task, buffer: int, kind: FindingKind) -> Problem | None:
        """Whether a buffer holds another iteration's value, or of what a thread writes itself, another thread's."""
        if not self._writers[buffer]:
            return None
        found, wanted = state.versions[buffer], reader.version
        threads = len(self.threads)
        same_thread = reader.thread in self._writers[buffer]
        if found and (found == wanted if same_thread else (found - 1) // threads == reader.iteration):
            return None
        parameters = buffer >= len(self.protocol.buffers)
        name = f"the parameters of {self.buffers[buffer]}" if parameters else self.buffers[buffer]
        holds = f"hold{'' if parameters else 's'}"
        return Problem(
            kind="stale parameters" if parameters else kind,
            sentence=f"'{reader.step}' is of iteration {reader.iteration}, and {name} {holds} {self._what(found)}",
        )

    def _what(self, version: int) -> str:
        if version == NEVER:
            return "nothing yet"
        iteration, thread = divmod(version - 1, len(self.threads))
        by = f" by {self.threads[thread]}" if len(self.threads) > 1 else ""
        return f"what iteration {iteration}{by} wrote"

    def _writers_of(self, buffer: int) -> set[int]:
        """The threads that write it, or submit what does."""
        return {
            call.thread
            for calls in self.calls
            for call in calls
            if (call.step.verb == "write" and call.name == buffer) or any(buffer in one.writes for one in call.submits)
        }

    def _call(self, step: Step, thread: int, iteration: int) -> Call:
        name = step.name
        if step.verb in ("write", "read", "begin update", "update"):
            number = self.buffers.index(name) if name in self.buffers else -1
        elif step.verb in ("acquire", "release"):
            number = self.semaphores.index(name)
        else:
            number = self.events.index(name) if name in self.events else -1
        stream = step.stream or (name if step.verb == "synchronise" and name in self.streams else None)
        return Call(
            step=step, thread=thread, iteration=iteration, version=1 + iteration * len(self.threads) + thread,
            submits=tuple(self._submissions(step)), name=number,
            stream=-1 if stream is None else self.streams.index(stream),
        )  # fmt: skip

    def _submissions(self, step: Step) -> Sequence[Submission]:
        if step.verb == "replay":
            return [self._submission(task, f"{step.name}.{task.name}") for task in self.protocol.graphs[step.name]]
        return [self._submission(step)] if step.verb in ("run", "record", "wait", "reset", "update") else []

    def _submission(self, step: Step, updated: str = "") -> Submission:
        event = self.events.index(step.name) if step.verb in ("record", "wait", "reset") else -1
        reads = [self.buffers.index(name) for name in step.reads]
        if step.verb == "run" and updated in self.protocol.updated:
            reads.append(self.buffers.index(updated))
        writes = [self.buffers.index(name) for name in (step.writes if step.verb == "run" else ())]
        if step.verb == "update":
            writes.append(self.buffers.index(step.name))
        return Submission(step, event, tuple(reads), tuple(writes))


def _with(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
