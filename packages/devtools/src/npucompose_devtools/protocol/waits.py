"""Which of a protocol's waits hold it up: it is checked once more without each of them."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from npucompose_devtools.protocol.explore import MOST_STATES, Finding, check
from npucompose_devtools.protocol.model import WAITS, Protocol, Step


@frozen(kw_only=True)
class WaitVerdict:
    """What comes of a protocol without one of its waits."""

    where: str
    """`threads.host.steps[3]`."""
    step: Step
    findings: tuple[Finding, ...]
    """What the first order of turns shows in which something goes wrong."""
    complete: bool

    @property
    def makes_no_difference(self) -> bool:
        """Everything was explored, and nothing goes wrong without it."""
        return self.complete and not self.findings


def weigh_waits(protocol: Protocol, *, most_states: int = MOST_STATES) -> Iterator[WaitVerdict]:
    """Of a protocol that holds: each wait, in the order of the file, and what goes wrong without it."""
    for where, step in protocol.places():
        if step.verb in WAITS:
            verdict = check(without(protocol, where), first=True, most_states=most_states)
            yield WaitVerdict(where=where, step=step, findings=verdict.findings, complete=verdict.complete)


def without(protocol: Protocol, where: str) -> Protocol:
    """The protocol without the step at that place."""
    kind, name, at = where.removesuffix("]").replace(".steps", "").replace("[", ".").split(".")
    if kind == "graphs":
        return evolve(protocol, graphs={**protocol.graphs, name: _left(protocol.graphs[name], int(at))})
    thread = protocol.threads[name]
    return evolve(protocol, threads={**protocol.threads, name: evolve(thread, steps=_left(thread.steps, int(at)))})


def _left(steps: tuple[Step, ...], at: int) -> tuple[Step, ...]:
    return (*steps[:at], *steps[at + 1 :])
