"""What `npucompose explain --capture` found, and how it is printed: the verdict, what is forbidden with line, code and
fix, the options in whose light it was judged. The rows are those of a report's page too.

my_model · target=cpu · mode=reduce-overhead                                                        does not capture
  verdict  proven  host_read: aten._local_scalar_dense reads a value on the host at m.py:9 in forward: n = x.item()
  under            target=cpu, mode=reduce-overhead, capture_error_mode=global, compile.fullgraph=true
  1        107027  host_read · proven
                   m.py:9 in forward: n = x.item()
                   -> keep the value on the device: torch.where(condition, a, b), …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from rich.console import Console
from rich.text import Text

from npucompose.console import asked_words, head, labelled
from npucompose.npu.capture.artefacts import render_printed
from npucompose.npu.capture.records import (
    CaptureBudgetFacts,
    CaptureFinding,
    CaptureLegality,
    CaptureRange,
    CaptureVerdict,
)
from npucompose.schema.sizes import as_bytes


@frozen(kw_only=True)
class CaptureExplanation:
    """What `npucompose explain --capture` found."""

    asked: Mapping[str, str]
    """{group: choice} of what was explained."""
    capture: CaptureLegality
    printed: tuple[str, ...] = ()
    """Lines that the model printed meanwhile."""
    trace_s: float
    """Seconds of torch.compile's trace."""
    judge_s: float
    """Seconds of the run under the simulated capture and of the judgement."""


STYLES: Mapping[CaptureVerdict, str] = {
    "captures": "green", "does not capture": "bold red", "captures with races": "bold red", "unknown": "yellow",
}  # fmt: skip
NO_CODE = "no code"
OUTSIDE = "between captures, where it is legal"
UNKNOWN = "unknown"
SIZES_SHOWN = 12
SHOWN = 30
"""Findings on the page; `--json` has all."""


def render(explanation: CaptureExplanation, console: Console) -> None:
    """Print it; 80 columns are enough; colours only on a terminal."""
    facts = explanation.capture
    console.print(head(asked_words(explanation.asked), Text(facts.verdict, style=STYLES[facts.verdict])))
    render_facts(facts, console)
    render_printed(explanation.printed, console)
    times = f"  traced in {explanation.trace_s:.2f} s, judged in {explanation.judge_s:.2f} s"
    console.print(Text(times, style="dim"))


def render_facts(facts: CaptureLegality, console: Console) -> None:
    """The verdict, the findings, the options."""
    console.print(labelled((_verdict(facts), _options(facts), *_findings(facts), *_notes(facts)), labels=2))
    budget = [
        (Text(f"  {label}"), Text(words, style="dim" if label == UNKNOWN else ""))
        for label, words in budget_lines(facts)
    ]
    console.print(labelled(budget, labels=1))


def captured_rows(facts: CaptureLegality | None) -> list[tuple[str, str, str, str, str]]:
    """Of a table: rule and standing, code, what the model does, its line, the fix."""
    if facts is None:
        return []
    return [
        (
            f"{one.rule} · {OUTSIDE if one.outside else one.standing}",
            _code(one),
            one.what,
            one.source or _node(one),
            one.fix,
        )
        for one in facts.findings
    ]


def budget_lines(facts: CaptureLegality) -> Iterator[tuple[str, str]]:
    """(label, words) of what the captures take."""
    found = facts.budget
    if found is None:
        if facts.no_budget is not None:
            yield "budget", f"not foretold: {facts.no_budget}"
        return
    number, largest = len(found.sizes), found.sizes[-1]
    yield "budget", f"of {found.soc}, for {_sizes_words(found)}"
    yield "one size", _taken(largest.streams, largest.tasks, largest.events, largest.nbytes) + _kernels(found)
    if number > 1:
        yield "all sizes", _taken(found.streams, found.tasks, found.events, found.nbytes)
    yield "streams", f"{found.streams} of {found.available} that captures can have"
    yield "fit", _fit(found)
    if found.recorded_bytes is not None and found.recorded_apart_bytes is not None:
        apart = f", {as_bytes(found.recorded_apart_bytes)} apart" if number > 1 or found.graphs > 1 else ""
        yield "here", f"recordings of this target hold {as_bytes(found.recorded_bytes)}{apart}"
    elif found.why_not_recorded is not None:
        yield "here", f"recordings of this target are not foretold: {found.why_not_recorded}"
    if found.changes:
        first = found.changes[0]
        freed = f"streams {first.streams}" if first.streams.high else f"events {first.events}"
        yield "frees most", f"{first.what}: {freed}, then {first.sizes} of {number} fit"
    for what in found.unknown:
        yield UNKNOWN, what


def _taken(streams: CaptureRange, tasks: CaptureRange, events: CaptureRange, nbytes: CaptureRange | None) -> str:
    words = f"streams {streams}, tasks {tasks}, events {events}, "
    if nbytes is None or nbytes.high is None:
        return f"{words}bytes unknown"
    low, high = as_bytes(nbytes.low), as_bytes(nbytes.high)
    return f"{words}pool {low}" + (f" to {high}" if high != low else "")


def _kernels(found: CaptureBudgetFacts) -> str:
    graphs = f", {found.graphs} graphs" if found.graphs > 1 else ""
    return f" ({found.kernels} kernels{graphs})"


def _fit(found: CaptureBudgetFacts) -> str:
    number = len(found.sizes)
    if len(found.certain) == number:
        return "all, whatever is unknown" if number > 1 else "yes, whatever is unknown"
    certain = ", ".join(map(str, found.certain)) or "none"
    possible = ", ".join(map(str, found.possible)) or "none"
    return f"for certain {certain}; at best {possible}; of {number}"


def _sizes_words(found: CaptureBudgetFacts) -> str:
    if len(found.sizes) == 1:
        return "the one size that is called"
    shown = [str(one.size) for one in found.sizes[:SIZES_SHOWN]]
    more = f", … {found.sizes[-1].size}" if len(found.sizes) > SIZES_SHOWN else ""
    return f"{len(found.sizes)} sizes ({found.sizes_of}: {', '.join(shown)}{more})"


def _verdict(facts: CaptureLegality) -> tuple[Text, Text, Text]:
    certainty = Text(facts.certainty, style=STYLES[facts.verdict])
    return Text("  verdict"), certainty, Text("\n".join(facts.evidence))


def _findings(facts: CaptureLegality) -> Iterator[tuple[Text, Text, Text]]:
    for number, one in enumerate(facts.findings[:SHOWN], 1):
        style = "dim" if one.outside else "yellow" if one.standing == "unknown" else "red"
        yield Text(f"  {number}"), Text(_code(one), style=style), _words(one)
    if len(facts.findings) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(facts.findings) - SHOWN} more", style="dim")


def _notes(facts: CaptureLegality) -> Iterator[tuple[Text, Text, Text]]:
    for note in facts.notes:
        yield Text("  note"), Text(""), Text(note, style="dim")


def _code(one: CaptureFinding) -> str:
    return NO_CODE if one.code is None else str(one.code)


def _words(one: CaptureFinding) -> Text:
    words = Text(f"{one.rule} · {one.standing}")
    if one.outside:
        words.append(f" · {OUTSIDE}")
    if one.also:
        words.append(f" · {', '.join(map(str, one.also))} too in a device's error and log")
    words.append(f"\n{one.what}", style="dim")
    where = " · ".join(part for part in (one.source, _node(one)) if part)
    if where:
        words.append(f"\n{where}")
    words.append(f"\n-> {one.fix}", style="bold")
    return words


def _node(one: CaptureFinding) -> str:
    return f"{one.graph} {one.node}" if one.node else ""


def _options(facts: CaptureLegality) -> tuple[Text, Text, Text]:
    words = ", ".join(f"{name}={value}" for name, value in facts.judged_under.items())
    return Text("  under"), Text(""), Text(words, style="dim")
