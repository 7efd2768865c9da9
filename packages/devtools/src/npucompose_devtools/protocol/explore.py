"""Every execution of a protocol, as far as order matters, and what goes wrong in one of them.

Breadth first, so that the first execution that shows a problem has the fewest turns; what of it has nothing to do with
the problem is then left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from attrs import define, evolve, field, frozen

from npucompose_devtools.protocol.machine import Call, FindingKind, Machine, Problem, State
from npucompose_devtools.protocol.model import Protocol
from npucompose_devtools.protocol.reduction import Reduction

MOST_STATES = 1_000_000
"""Explored before it is given up."""
MOST_BYTES = 2 * 2**30
"""Of states, as below: of a protocol with long queues fewer are explored."""
STATE_BYTES, TURN_BYTES = 1_000, 8
"""Of a state, and for each task that can stand in its queues."""
MOST_SHORTENED = 500
"""Turns of an execution that is shortened: each is tried, and the execution run again."""
MOST_FINDINGS = 32
"""Kept, the first of each place."""


@frozen(kw_only=True)
class TraceStep:
    """One turn: `TraceStep(process="main", text="run attention", iteration=1)`."""

    process: str
    text: str
    iteration: int


@frozen(kw_only=True)
class Finding:
    """What can go wrong, and an execution in which it does."""

    kind: FindingKind
    sentence: str
    process: str
    """The thread or stream that reads, calls or waits."""
    trace: tuple[TraceStep, ...]
    """Turn after turn, the one that shows the problem last."""
    processes: tuple[str, ...]
    """All threads and streams of the protocol, in its order."""
    waiting: tuple[TraceStep, ...] = ()
    """Of a deadlock: the step at which each waits who cannot go on."""
    why: tuple[str, ...] = ()
    """Of a deadlock: for each of these, why what it waits for never comes."""


@frozen(kw_only=True)
class ProtocolVerdict:
    """`complete` says that nothing was left out: no findings then means that there are none."""

    findings: tuple[Finding, ...]
    states: int
    turns: int
    """Turns that were taken, each from one state to another."""
    complete: bool
    ends: int
    """States in which nobody can move."""

    @property
    def holds(self) -> bool:
        return self.complete and not self.findings


def check(
    protocol: Protocol, *, reduced: bool = True, first: bool = False, most_states: int = MOST_STATES
) -> ProtocolVerdict:
    """Explore every order of turns; with `first` no further than to the first finding; `reduced=False` explores every
    order even of turns whose order makes no difference."""
    machine = Machine(protocol)
    bound = MOST_BYTES // (STATE_BYTES + TURN_BYTES * sum(map(_turns, machine.calls)))
    search = _Search(machine=machine, reduced=reduced, first=first, most_states=min(most_states, bound))
    search.run()
    return ProtocolVerdict(
        findings=tuple(search.findings()),
        states=len(search.parents),
        turns=search.turns,
        complete=not search.given_up,
        ends=len(search.ends),
    )


def _turns(calls: Sequence[Call]) -> int:
    return sum(max(1, len(call.submits)) for call in calls)


@define(kw_only=True)
class _Search:
    machine: Machine
    reduced: bool
    first: bool
    most_states: int
    parents: dict[State, tuple[State, int] | None] = field(factory=dict[State, "tuple[State, int] | None"])
    ends: list[State] = field(factory=list[State])
    turns: int = 0
    given_up: bool = False
    problems: dict[tuple[str, ...], tuple[State, int, Problem]] = field(
        factory=dict[tuple[str, ...], "tuple[State, int, Problem]"]
    )

    def run(self) -> None:
        start = self.machine.start()
        self.parents[start] = None
        waiting = deque([start])
        reduction = Reduction(self.machine) if self.reduced else None
        while waiting:
            state = waiting.popleft()
            ready = self.machine.ready(state)
            if not ready:
                self.ends.append(state)
            for process in reduction.enough(state, ready) if reduction else ready:
                self._take(state, process, waiting)
            if len(self.parents) > self.most_states or (self.first and self._found_one()):
                self.given_up = bool(waiting)
                return

    def _found_one(self) -> bool:
        return bool(self.problems) or (bool(self.ends) and not self.machine.is_done(self.ends[-1]))

    def _take(self, state: State, process: int, waiting: deque[State]) -> None:
        self.turns += 1
        after, problem = self.machine.turn(state, process)
        if problem is not None:
            place = (problem.kind, self.machine.processes[process], self._text(state, process).text)
            self.problems.setdefault(place, (state, process, problem))
        if after not in self.parents:
            self.parents[after] = (state, process)
            waiting.append(after)

    def findings(self) -> Iterator[Finding]:
        for state, process, problem in list(self.problems.values())[:MOST_FINDINGS]:
            schedule = shortened(self.machine, [*self._schedule(state), process], problem)
            yield Finding(
                kind=problem.kind,
                sentence=problem.sentence,
                process=self.machine.processes[process],
                processes=self.machine.processes,
                trace=self._trace(schedule),
            )
        yield from self._deadlocks()

    def _deadlocks(self) -> Iterator[Finding]:
        """The first for each set of those who wait."""
        found: dict[tuple[tuple[str, str], ...], State] = {}
        for state in self.ends:
            if stuck := tuple((step.process, step.text) for step in self._stuck(state)):
                found.setdefault(stuck, state)
        for state in list(found.values())[:MOST_FINDINGS]:
            stuck = tuple(self._stuck(state))
            waits = (f"{step.process} waits for ever at '{step.text}' of iteration {step.iteration}" for step in stuck)
            yield Finding(
                kind="deadlock",
                sentence=" and ".join(waits),
                process=stuck[0].process,
                processes=self.machine.processes,
                trace=self._trace(self._schedule(state)),
                waiting=stuck,
                why=tuple(f"{step.process}: {self._why(state, step.process)}" for step in stuck),
            )

    def _stuck(self, state: State) -> Iterator[TraceStep]:
        """The next step of whoever still has something to do where nobody can move."""
        for process in range(len(self.machine.processes)):
            if self._next(state, process) is not None:
                yield self._text(state, process)

    def _next(self, state: State, process: int) -> object:
        threads = len(self.machine.threads)
        if process < threads:
            return self.machine.call_of(state, process)
        return self.machine.task_of(state, process - threads)

    def _why(self, state: State, name: str) -> str:
        machine = self.machine
        process, threads = machine.processes.index(name), len(machine.threads)
        if process < threads:
            call = machine.calls[process][state.at[process]]
            if call.step.verb == "acquire":
                return f"whoever could release {call.step.name} does not get so far."
            return f"{call.step.stream or call.step.name} does not get so far."
        task = machine.tasks[state.queues[process - threads][0]]
        holder = None if task.external else machine.holder(state, task.event, task.number)
        if holder is not None:
            return f"the record of {task.step.name} stands behind what {machine.streams[holder]} waits for."
        return self._record_missing(state, task.event)

    def _record_missing(self, state: State, event: int) -> str:
        machine, name = self.machine, self.machine.events[event]
        for stream, queue in enumerate(state.queues):
            for task in map(machine.tasks.__getitem__, queue[1:]):
                if task.event == event and task.step.verb == "record":
                    return f"the next record of {name} stands behind what {machine.streams[stream]} waits for."
        for thread, at in enumerate(state.at):
            rest = (one for call in machine.calls[thread][at:] for one in call.submits)
            if any(one.event == event and one.step.verb == "record" for one in rest):
                return f"{machine.threads[thread]}, which would record {name} next, waits itself."
        return f"{name} is not set, and nobody is left who would record it."

    def _schedule(self, state: State) -> list[int]:
        """The turns that led to a state."""
        found: list[int] = []
        while (parent := self.parents[state]) is not None:
            state = parent[0]
            found.append(parent[1])
        return found[::-1]

    def _trace(self, schedule: Sequence[int]) -> tuple[TraceStep, ...]:
        state, found = self.machine.start(), list[TraceStep]()
        for process in schedule:
            found.append(self._text(state, process))
            state = self.machine.turn(state, process)[0]
        return tuple(found)

    def _text(self, state: State, process: int) -> TraceStep:
        """What that process does next."""
        threads, name = len(self.machine.threads), self.machine.processes[process]
        if process < threads:
            call = self.machine.calls[process][state.at[process]]
            return TraceStep(process=name, text=str(call.step), iteration=call.iteration)
        task = self.machine.tasks[state.queues[process - threads][0]]
        return TraceStep(process=name, text=str(evolve(task.step, stream=None)), iteration=task.iteration)


def shortened(machine: Machine, schedule: Sequence[int], problem: Problem) -> list[int]:
    """The same problem in the last turn, without turns that it does not need: a process's last ones, time and again."""
    found = list(schedule)
    again = len(found) <= MOST_SHORTENED
    while again:
        again = False
        for process in set(found[:-1]):
            at = max(index for index, one in enumerate(found[:-1]) if one == process)
            shorter = [*found[:at], *found[at + 1 :]]
            if _shows(machine, shorter, problem):
                found, again = shorter, True
                break
    return found


def _shows(machine: Machine, schedule: Sequence[int], problem: Problem) -> bool:
    state, found = machine.start(), None
    for process in schedule:
        if process not in machine.ready(state):
            return False
        state, found = machine.turn(state, process)
    return found == problem
