"""`npucompose protocol PROTOCOL.yaml`: can the host's side of a replay hang or read what is stale."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose_devtools.protocol.explore import MOST_STATES, Finding, ProtocolVerdict, TraceStep, check
from npucompose_devtools.protocol.model import WAITS, Protocol, Step
from npucompose_devtools.protocol.reading import read_protocol, shape, shapes


def act(arguments: argparse.Namespace) -> int:
    """The command: exit status 1 where something can go wrong, or where not every order could be explored."""
    most = MOST_STATES if arguments.most_states is None else arguments.most_states
    if not 1 <= most <= MOST_STATES:
        raise ConfigError(f"--most-states {most}: must be from 1 to {MOST_STATES:,}.")
    protocol = _protocol(arguments.protocol)
    verdict = check(protocol, most_states=most)
    weighed = tuple(weigh_waits(protocol, most_states=most)) if arguments.waits and verdict.holds else ()
    if arguments.json:
        print(json.dumps(_as_dict(verdict, weighed), indent=2))
    else:
        print("\n".join(_lines(verdict, weighed)))
    return 0 if verdict.holds else 1


def _protocol(asked: str) -> Protocol:
    """A file's, or one of the package's by its name."""
    return shape(asked) if asked in shapes() and not Path(asked).exists() else read_protocol(Path(asked))


def _lines(verdict: ProtocolVerdict, weighed: tuple[WaitVerdict, ...]) -> Iterator[str]:
    yield summary_of(verdict)
    for finding in verdict.findings:
        yield ""
        yield page_of(finding)
    for wait in weighed:
        kind = "not decided" if not wait.findings else wait.findings[0].kind
        yield f"without '{wait.step}' ({wait.where}): {'no difference' if wait.makes_no_difference else kind}"


def _as_dict(verdict: ProtocolVerdict, weighed: tuple[WaitVerdict, ...]) -> dict[str, Any]:
    return {
        "holds": verdict.holds,
        "complete": verdict.complete,
        "states": verdict.states,
        "turns": verdict.turns,
        "findings": [_finding(finding) for finding in verdict.findings],
        "waits": [
            {
                "where": wait.where,
                "step": str(wait.step),
                "makes_no_difference": wait.makes_no_difference,
                "findings": [finding.sentence for finding in wait.findings],
            }
            for wait in weighed
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return attrs.asdict(finding, filter=lambda field, _: field.name != "processes")


# A finding as text: a column for each thread and stream, a line for each turn, and who waits for ever and why.

GAP = 3
FOR_EVER = "waits for ever"


def page_of(finding: Finding) -> str:
    """The drawing, without a line's end behind it.

    deadlock: main waits for ever at 'wait parameters_set' of iteration 1

          host                   main                    update
       1  0 replay decode
       …
    """
    columns = [name for name in finding.processes if any(name == step.process for step in finding.trace)]
    numbers = len(str(len(finding.trace)))
    cells = [(step.process, _cell(step)) for step in finding.trace]
    ends = [(step.process, f"{_cell(step)}  ■ {FOR_EVER}") for step in finding.waiting]
    columns += [name for name, _ in ends if name not in columns]
    widths = {
        name: max([len(name), *(len(text) for process, text in [*cells, *ends] if process == name)]) for name in columns
    }
    lines = [f"{finding.kind}: {finding.sentence}", ""]
    lines.append(_line("", dict(zip(columns, columns, strict=True)), columns, widths, numbers))
    lines += (_line(str(at), {name: text}, columns, widths, numbers) for at, (name, text) in enumerate(cells, 1))
    lines += (_line("", {name: text}, columns, widths, numbers) for name, text in ends)
    return "\n".join([*lines, *(["", *finding.why] if finding.why else [])])


def summary_of(verdict: ProtocolVerdict) -> str:
    """`holds: 853 states and 898 turns, every order explored`."""
    found = f"{len(verdict.findings)} finding{'s' * (len(verdict.findings) != 1)}" if verdict.findings else "holds"
    if not verdict.complete:
        found = f"not decided{f', {found} so far' * bool(verdict.findings)}"
    how = "every order explored" if verdict.complete else "given up before every order was explored"
    return f"{found}: {verdict.states:,} states and {verdict.turns:,} turns, {how}"


def _cell(step: TraceStep) -> str:
    return f"{step.iteration} {step.text.partition(' reads ')[0].partition(' writes ')[0]}"


def _line(number: str, cells: dict[str, str], columns: Sequence[str], widths: dict[str, int], numbers: int) -> str:
    row = (" " * GAP).join(cells.get(name, "").ljust(widths[name]) for name in columns)
    return f"{number:>{numbers}}  {row}".rstrip()


# Which of a protocol's waits hold it up: it is checked once more without each of them.


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
