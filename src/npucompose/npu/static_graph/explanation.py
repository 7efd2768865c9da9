"""What `npucompose explain` found, and how it is printed: three verdicts, the blame and the steps with what mends them,
beside them what logs and dumps of a device say. The words are those of a report too.

attention_decode · target=npu_offline · mode=max-autotune · shapes=dynamic · tiling=sink      path 4
  FX graph   dynamic · proven    actual_seq_lengths_kv[0] is the number s97 (placeholder arg3_1)
  GE graph   static · proven     Data arg0_1 [2, 8, 1, 64]
  GE build   static · derived    rule 7: no operator of the graph is dynamic
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from rich.console import Console
from rich.text import Text

from npucompose.console import asked_words, head, labelled
from npucompose.npu.capture import artefacts
from npucompose.npu.static_graph.records import (
    Blame,
    DiagnosisStep,
    GraphKind,
    SinkingFacts,
    SinkingVerdict,
    StepStatus,
)
from npucompose.results.artefacts import CapturedGraph, CaptureError


@frozen(kw_only=True)
class Explanation:
    """What `npucompose explain` found."""

    asked: Mapping[str, str]
    """{group: choice} of what was explained, or `file`."""
    sinking: SinkingFacts
    compile_s: float
    """Seconds of the compilation that it took; 0 where only files were read."""
    diagnosis_s: float
    """Seconds of all that came after it."""
    implied: tuple[str, ...] = ()
    """What an option that was asked for demands of the caller, a sentence each."""
    recording: tuple[str, ...] = ()
    """Sentences about graphs that cannot be recorded whole, here or on an NPU."""
    notes: tuple[str, ...] = ()
    """What else the compilation showed, a sentence each."""
    printed: tuple[str, ...] = ()
    """Lines that the model printed meanwhile."""
    errors: tuple[CaptureError, ...] = ()
    """Error codes of the runtime in the logs that were read."""
    captured: tuple[CapturedGraph, ...] = ()
    """Captured graphs that were read."""


TITLES = {"fx_graph": "FX graph", "ge_graph": "GE graph", "ge_build": "GE build"}


def path_words(facts: SinkingFacts) -> str:
    return f"path {facts.path}" if facts.path is not None else facts.almost or "no path"


def verdicts_words(facts: SinkingFacts, ge_graphs: bool = True) -> list[str]:
    """`GE build static (derived)` and the others; of the FX graph alone where the mode builds no GE graph."""
    found: list[str] = []
    for name, verdict in facts.verdicts().items():
        if ge_graphs or name == "fx_graph":
            value, *certainty = value_words(verdict)
            found.append(f"{TITLES[name]} {value}{''.join(f' ({words})' for words in certainty)}")
    return found


def value_words(verdict: SinkingVerdict) -> tuple[str, ...]:
    """Value and certainty; of a graph that does not exist nothing is unsure."""
    seen = verdict.value == "failed" and verdict.certainty == "unknown"
    return (verdict.value,) if seen else (verdict.value, verdict.certainty)


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
    console.print(head(asked_words(explanation.asked), Text(_answer(explanation), style="bold")))
    for sentence in explanation.recording:
        console.print(Text(f"  {sentence}", style="yellow"))
    if _says_something(explanation):
        render_facts(explanation.sinking, console)
    artefacts.render(explanation.errors, explanation.captured, console)
    for sentence in (*explanation.implied, *explanation.notes):
        console.print(Text(f"  {sentence}", style="yellow"))
    artefacts.render_printed(explanation.printed, console)
    if not explanation.compile_s:
        return
    times = f"  compiled in {explanation.compile_s:.2f} s, diagnosed in {explanation.diagnosis_s:.2f} s"
    console.print(Text(times, style="dim"))


def _answer(explanation: Explanation) -> str:
    """What stands at the right of the head."""
    if _says_something(explanation):
        return path_words(explanation.sinking)
    return artefacts.title(explanation.errors, explanation.captured)


def _says_something(explanation: Explanation) -> bool:
    """A file that is about captures alone says nothing of sinking."""
    facts = explanation.sinking
    return bool(
        facts.steps or facts.failure or any(verdict.value != "unknown" for verdict in facts.verdicts().values())
    )


def render_facts(facts: SinkingFacts, console: Console) -> None:
    """The verdicts, the blame and the steps."""
    console.print(labelled((*_verdicts(facts), *_blame(facts.blame), *_steps(facts.steps)), labels=2))


def _verdicts(facts: SinkingFacts) -> Iterator[tuple[Text, Text, Text]]:
    for name, verdict in facts.verdicts().items():
        value = Text(" · ".join(value_words(verdict)), style=KINDS[verdict.value])
        yield Text(f"  {TITLES[name]}"), value, Text("\n".join(verdict.evidence))


def _blame(blame: tuple[Blame, ...]) -> Iterator[tuple[Text, Text, Text]]:
    """The first one: the others are in the report."""
    for one in blame[:1]:
        more = f" · and {len(blame) - 1} more" if len(blame) > 1 else ""
        who = f"{one.argument or one.node} · {one.operator}{more}"
        where = f"\n{one.source}" if one.source else ""
        rule = f"{one.rule}: " if one.rule else ""
        yield Text("  to blame"), Text(one.graph or ""), Text(f"{who}\n{rule}{one.reason}{where}")


def _steps(steps: tuple[DiagnosisStep, ...]) -> Iterator[tuple[Text, Text, Text]]:
    for step in steps:
        words = Text(f"{step.title}")
        words.append("".join(f"\n{line}" for line in step.evidence), style="dim")
        if step.fix is not None:
            words.append(f"\n-> {step.fix}", style="bold")
        yield Text(f"  {step.id}"), Text(step.status, style=STYLES[step.status]), words
