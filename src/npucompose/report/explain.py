"""An explanation for a person: three verdicts, the blame, the steps with what mends them. Pure: reads the schema only.

attention_decode · target=npu_offline · mode=max-autotune · shapes=dynamic · tiling=sink      path 4
  FX graph   dynamic · proven    actual_seq_lengths_kv[0] is the number s97 (placeholder arg3_1)
  GE graph   static · proven     Data arg0_1 [2, 8, 1, 64]
  GE build   static · derived    row 7: no operator of the graph is dynamic
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.schema.facts import facts_of
from npucompose.schema.sinking import Blame, Explanation, GraphKind, SinkingFacts, Step, StepStatus, Verdict

TITLES = {"fx_graph": "FX graph", "ge_graph": "GE graph", "ge_build": "GE build"}
STYLES: Mapping[StepStatus, str] = {"ok": "green", "problem": "bold red", "unknown": "yellow", "skipped": "dim"}
KINDS: Mapping[GraphKind, str] = {
    "static": "green",
    "mixed": "yellow",
    "dynamic": "red",
    "unknown": "yellow",
    "failed": "red",
}


def render(explanation: Explanation, console: Console) -> None:
    """Print it; 80 columns are enough; colours only on a terminal."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(_title(explanation.asked), style="bold"), Text(path_words(explanation.sinking), style="bold"))
    console.print(head)
    for sentence in explanation.recording:
        console.print(Text(f"  {sentence}", style="yellow"))
    render_facts(explanation.sinking, console)
    for sentence in (*explanation.implied, *explanation.notes):
        console.print(Text(f"  {sentence}", style="yellow"))
    if not explanation.compile_s:
        return
    times = f"  compiled in {explanation.compile_s:.2f} s, diagnosed in {explanation.diagnosis_s:.2f} s"
    console.print(Text(times, style="dim"))


def render_facts(facts: SinkingFacts, console: Console) -> None:
    """The verdicts, the blame and the steps."""
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(no_wrap=True)
    body.add_column(no_wrap=True)
    body.add_column(overflow="fold")
    for row in (*_verdicts(facts), *_blame(facts.blame), *_steps(facts.steps)):
        body.add_row(*row)
    console.print(body)


def as_json(explanation: Explanation) -> str:
    """The same as JSON; the fields are those of `sinking` in docs/report.md."""
    return json.dumps(facts_of(explanation), indent=2, ensure_ascii=False)


def path_words(facts: SinkingFacts) -> str:
    return f"path {facts.path}" if facts.path is not None else "no path"


def _title(asked: Mapping[str, str]) -> str:
    return " · ".join(choice if group in ("model", "file") else f"{group}={choice}" for group, choice in asked.items())


def _verdicts(facts: SinkingFacts) -> Iterator[tuple[Text, Text, Text]]:
    for name, verdict in facts.verdicts().items():
        value = Text(" · ".join(value_words(verdict)), style=KINDS[verdict.value])
        yield Text(f"  {TITLES[name]}"), value, Text("\n".join(verdict.evidence))


def verdict_words(name: str, verdict: Verdict) -> str:
    """`GE build static (derived)`."""
    value, *certainty = value_words(verdict)
    return f"{TITLES[name]} {value}{''.join(f' ({words})' for words in certainty)}"


def value_words(verdict: Verdict) -> tuple[str, ...]:
    """Value and certainty; of a graph that does not exist nothing is unsure."""
    seen = verdict.value == "failed" and verdict.certainty == "unknown"
    return (verdict.value,) if seen else (verdict.value, verdict.certainty)


def _blame(blame: tuple[Blame, ...]) -> Iterator[tuple[Text, Text, Text]]:
    """The first one: the others are in the report."""
    for one in blame[:1]:
        more = f" · and {len(blame) - 1} more" if len(blame) > 1 else ""
        who = f"{one.argument or one.node} · {one.operator}{more}"
        where = f"\n{one.source}" if one.source else ""
        rule = f"{one.rule}: " if one.rule else ""
        yield Text("  to blame"), Text(one.graph or ""), Text(f"{who}\n{rule}{one.reason}{where}")


def _steps(steps: tuple[Step, ...]) -> Iterator[tuple[Text, Text, Text]]:
    for step in steps:
        words = Text(f"{step.title}")
        words.append("".join(f"\n{line}" for line in step.evidence), style="dim")
        if step.fix is not None:
            words.append(f"\n-> {step.fix}", style="bold")
        yield Text(f"  {step.id}"), Text(step.status, style=STYLES[step.status]), words
