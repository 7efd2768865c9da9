"""Which turns of a state are enough: partial-order reduction by persistent sets.

Two turns are independent where each leaves the other possible and their order makes no difference. A persistent set
holds turns such that nothing the others can do before one of them depends on it; exploring one such set in each state
reaches every deadlock and every order of dependent turns (Godefroid, Partial-Order Methods for the Verification of
Concurrent Systems, LNCS 1032, 1996, chapters 3 and 4). The sets are computed as strong stubborn sets: from one turn,
whoever may yet depend on a member is added, and of one who is blocked, whoever can end that (ibid., 4.5; Valmari,
Stubborn sets for reduced state space generation, 1989). Loops are unrolled and every turn uses up a step, so that no
turn can be put off for ever and no further condition is needed. No sleep sets: states are kept and met only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field, frozen

from npucompose_devtools.protocol.machine import Call, Machine, State, Task


@frozen
class Touch:
    """What a turn reads and changes, a bit for each object: the tail of a stream's queue, an external event's flag, how
    often an ordinary event was recorded, a buffer, a semaphore."""

    reads: int = 0
    changes: int = 0

    def __or__(self, other: Touch) -> Touch:
        return Touch(self.reads | other.reads, self.changes | other.changes)

    def depends(self, other: Touch) -> bool:
        return bool(self.changes & (other.reads | other.changes) or self.reads & other.changes)


NOTHING = Touch()


@frozen(kw_only=True)
class _Rest:
    """What a thread can do from one of its steps on."""

    turn: Touch
    """Of that step alone."""
    own: Touch
    tasks: tuple[Touch, ...]
    """Of each stream: what the tasks touch that it will submit."""
    sets: int
    """External events that these record, a bit for each."""
    releases: int
    """Semaphores."""


@define
class Reduction:
    """`Reduction(machine).enough(state, machine.ready(state))`"""

    machine: Machine
    _rest: tuple[tuple[_Rest, ...], ...] = field(init=False)
    _queues: dict[tuple[int, ...], Touch] = field(factory=dict[tuple[int, ...], Touch], init=False)

    def __attrs_post_init__(self) -> None:
        self._rest = tuple(self._rests(calls) for calls in self.machine.calls)

    def enough(self, state: State, ready: Sequence[int]) -> Sequence[int]:
        """The smallest persistent set that is found from one of `ready`."""
        best = ready
        for seed in ready:
            if len(best) == 1:
                break
            members = self._closed(state, seed, frozenset(ready))
            chosen = [process for process in ready if process in members]
            best = chosen if len(chosen) < len(best) else best
        return best

    def _closed(self, state: State, seed: int, ready: frozenset[int]) -> set[int]:
        members, todo = {seed}, [seed]
        while todo:
            process = todo.pop()
            wanted = self._dependent(state, process, members) if process in ready else self._enablers(state, process)
            new = set(wanted) - members
            members |= new
            todo += new
        return members

    def _dependent(self, state: State, process: int, members: set[int]) -> Iterable[int]:
        """Whoever is no member, and may do what depends on this one's turn before a member has moved."""
        threads = len(self.machine.threads)
        turn = self._turn(state, process)
        free = [at for at in range(threads) if at not in members]
        yield from (at for at in free if turn.depends(self._of(state, at).own))
        for stream, queue in enumerate(state.queues):
            if threads + stream in members:
                continue
            if queue and turn.depends(self._of_queue(queue)):
                yield threads + stream
                continue
            pushing = [at for at in free if turn.depends(self._of(state, at).tasks[stream])]
            yield from [threads + stream] if queue and pushing else pushing

    def _enablers(self, state: State, process: int) -> Iterable[int]:
        """Of one who cannot move: all of those one of whom has to move first. Nobody, where that is for ever."""
        machine, threads = self.machine, len(self.machine.threads)
        if process < threads:
            call = machine.call_of(state, process)
            return () if call is None else self._enablers_of_call(state, call)
        task = machine.task_of(state, process - threads)
        assert task is not None, "a stream is a member for the tasks that it has"
        if not task.external:
            holder = machine.holder(state, task.event, task.number)
            return () if holder is None else [threads + holder]
        return self._setting(state, task.event)

    def _enablers_of_call(self, state: State, call: Call) -> Iterable[int]:
        machine, threads = self.machine, len(self.machine.threads)
        if call.step.verb == "acquire":
            return [at for at in range(threads) if self._of(state, at).releases >> call.name & 1]
        if call.stream >= 0:
            return [threads + call.stream]
        holder = machine.holder(state, call.name, state.recorded[call.name])
        return () if holder is None else [threads + holder]

    def _setting(self, state: State, event: int) -> Iterable[int]:
        machine, threads = self.machine, len(self.machine.threads)
        for at in range(threads):
            if self._of(state, at).sets >> event & 1:
                yield at
        for stream, queue in enumerate(state.queues):
            tasks = map(machine.tasks.__getitem__, queue)
            if any(task.event == event and task.step.verb == "record" for task in tasks):
                yield threads + stream

    def _of(self, state: State, thread: int) -> _Rest:
        rest = self._rest[thread]
        return rest[min(state.at[thread], len(rest) - 1)]

    def _of_queue(self, queue: tuple[int, ...]) -> Touch:
        if queue not in self._queues:
            self._queues[queue] = _all(self._of_task(self.machine.tasks[number]) for number in queue)
        return self._queues[queue]

    def _turn(self, state: State, process: int) -> Touch:
        threads = len(self.machine.threads)
        if process < threads:
            return self._of(state, process).turn
        return self._of_queue(state.queues[process - threads][:1])

    def _of_task(self, task: Task) -> Touch:
        return self._of_submitted(task.step.verb, task.event, task.reads, task.writes)

    def _of_submitted(self, verb: str, event: int, reads: Iterable[int], writes: Iterable[int]) -> Touch:
        """A flag is set by many in any order, and a wait that may go on is not held back by a record: only a reset
        depends. Records of ordinary events and waits for them are in each other's way only while they are submitted."""
        if event >= 0:
            flag = self._bit("event", event) if self.machine.is_external(event) else 0
            return Touch(changes=flag) if verb == "reset" else Touch(reads=flag)
        return Touch(reads=self._bits("buffer", reads), changes=self._bits("buffer", writes))

    def _of_call(self, call: Call) -> Touch:
        verb = call.step.verb
        if verb == "release":
            return NOTHING
        if verb == "acquire":
            return Touch(changes=self._bit("semaphore", call.name))
        if verb in ("write", "read"):
            bit = self._bit("buffer", call.name)
            return Touch(changes=bit) if verb == "write" else Touch(reads=bit)
        if verb == "synchronise":
            return Touch(reads=self._bit("stream", call.stream) if call.stream >= 0 else self._bit("event", call.name))
        touch = Touch(changes=self._bit("stream", call.stream))
        if call.name >= 0 and verb in ("record", "wait") and not self.machine.is_external(call.name):
            event = self._bit("event", call.name)
            touch |= Touch(changes=event) if verb == "record" else Touch(reads=event)
        return touch

    def _bit(self, kind: str, number: int) -> int:
        machine = self.machine
        kinds = {"stream": machine.streams, "event": machine.events, "buffer": machine.buffers, "semaphore": ()}
        before = [len(values) for values in list(kinds.values())[: list(kinds).index(kind)]]
        return 1 << (sum(before) + number)

    def _bits(self, kind: str, numbers: Iterable[int]) -> int:
        found = 0
        for number in numbers:
            found |= self._bit(kind, number)
        return found

    def _rests(self, calls: Sequence[Call]) -> tuple[_Rest, ...]:
        rest = _Rest(turn=NOTHING, own=NOTHING, tasks=(NOTHING,) * len(self.machine.streams), sets=0, releases=0)
        found = [rest]
        for call in reversed(calls):
            tasks, sets = list(rest.tasks), rest.sets
            for step, event, reads, writes in call.submits:
                tasks[call.stream] |= self._of_submitted(step.verb, event, reads, writes)
                sets |= (step.verb == "record") << event if event >= 0 else 0
            releases = rest.releases | ((1 << call.name) if call.step.verb == "release" else 0)
            turn = self._of_call(call)
            rest = _Rest(turn=turn, own=rest.own | turn, tasks=tuple(tasks), sets=sets, releases=releases)
            found.append(rest)
        return tuple(reversed(found))


def _all(touches: Iterable[Touch]) -> Touch:
    found = NOTHING
    for touch in touches:
        found |= touch
    return found
