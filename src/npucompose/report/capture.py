"""What `npucompose explain --capture` prints: the verdict, what is forbidden with line, code and fix, the options in
whose light it was judged. Pure: reads results only.

my_model · target=cpu · mode=reduce-overhead                                                        does not capture
  verdict  proven  host_read: aten._local_scalar_dense reads a value on the host at m.py:9 in forward: n = x.item()
  under            target=cpu, mode=reduce-overhead, capture_error_mode=global, compile.fullgraph=true
  1        107027  host_read · proven
                   m.py:9 in forward: n = x.item()
                   -> keep the value on the device: torch.where(condition, a, b), …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.results.capture import CaptureExplanation, CaptureFinding, CaptureLegality, CaptureVerdict

STYLES: Mapping[CaptureVerdict, str] = {"captures": "green", "does not capture": "bold red", "unknown": "yellow"}
NO_CODE = "no code"
OUTSIDE = "between captures, where it is legal"
SHOWN = 30
"""Findings on the page; `--json` has all."""


def render(explanation: CaptureExplanation, console: Console) -> None:
    """Print it; 80 columns are enough; colours only on a terminal."""
    facts = explanation.capture
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(_title(explanation.asked), style="bold"), Text(facts.verdict, style=STYLES[facts.verdict]))
    console.print(head)
    render_facts(facts, console)
    times = f"  traced in {explanation.trace_s:.2f} s, judged in {explanation.judge_s:.2f} s"
    console.print(Text(times, style="dim"))


def render_facts(facts: CaptureLegality, console: Console) -> None:
    """The verdict, the findings, the options."""
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(no_wrap=True)
    body.add_column(no_wrap=True)
    body.add_column(overflow="fold")
    for row in (_verdict(facts), _options(facts), *_findings(facts)):
        body.add_row(*row)
    console.print(body)


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


def _title(asked: Mapping[str, str]) -> str:
    return " · ".join(choice if group == "model" else f"{group}={choice}" for group, choice in asked.items())


def _verdict(facts: CaptureLegality) -> tuple[Text, Text, Text]:
    certainty = Text(facts.certainty, style=STYLES[facts.verdict])
    return Text("  verdict"), certainty, Text("\n".join(facts.evidence))


def _findings(facts: CaptureLegality) -> Iterator[tuple[Text, Text, Text]]:
    for number, one in enumerate(facts.findings[:SHOWN], 1):
        style = "dim" if one.outside else "yellow" if one.standing == "unknown" else "red"
        yield Text(f"  {number}"), Text(_code(one), style=style), _words(one)
    if len(facts.findings) > SHOWN:
        yield Text(""), Text(""), Text(f"and {len(facts.findings) - SHOWN} more", style="dim")


def _code(one: CaptureFinding) -> str:
    return NO_CODE if one.code is None else str(one.code)


def _words(one: CaptureFinding) -> Text:
    words = Text(f"{one.rule} · {one.standing}")
    if one.outside:
        words.append(f" · {OUTSIDE}")
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
