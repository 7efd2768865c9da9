"""A finding as text: a column for each thread and stream, a line for each turn, and who waits for ever and why."""

from __future__ import annotations

from collections.abc import Sequence

from npucompose_devtools.protocol.explore import Finding, ProtocolVerdict, TraceStep

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
