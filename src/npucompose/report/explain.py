"""What `npucompose explain` prints: three verdicts, the blame and the steps with what mends them; a dry run of
adaptation rules; who set each option. Pure: reads the schema only.

attention_decode · target=npu_offline · mode=max-autotune · shapes=dynamic · tiling=sink      path 4
  FX graph   dynamic · proven    actual_seq_lengths_kv[0] is the number s97 (placeholder arg3_1)
  GE graph   static · proven     Data arg0_1 [2, 8, 1, 64]
  GE build   static · derived    rule 7: no operator of the graph is dynamic
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npucompose.errors import ConfigError, unknown
from npucompose.report import artefacts
from npucompose.report.terminal import rows
from npucompose.report.words import TITLES, path_words, value_words
from npucompose.results.capture import CaptureExplanation
from npucompose.results.effective import COMMAND_LINE, DEFAULT, Setting
from npucompose.results.explanation import Explanation
from npucompose.results.graphs import DryRun
from npucompose.results.sinking import (
    Blame,
    DiagnosisStep,
    GraphKind,
    SinkingFacts,
    StepStatus,
)
from npucompose.table.structure import facts_of

STYLES: Mapping[StepStatus, str] = {"ok": "green", "problem": "bold red", "unknown": "yellow", "skipped": "dim"}
KINDS: Mapping[GraphKind, str] = {
    "static": "green",
    "mixed": "yellow",
    "dynamic": "red",
    "unknown": "yellow",
    "failed": "red",
}
COMPILER = "compiler."
DEFAULT_FILES = (DEFAULT, "conf/compiler/default.yaml")
"""Who says what nobody chose, of the compiler's options."""


def render(explanation: Explanation, console: Console) -> None:
    """Print it; 80 columns are enough; colours only on a terminal."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(_title(explanation.asked), style="bold"), Text(_answer(explanation), style="bold"))
    console.print(head)
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
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(no_wrap=True)
    body.add_column(no_wrap=True)
    body.add_column(overflow="fold")
    for row in (*_verdicts(facts), *_blame(facts.blame), *_steps(facts.steps)):
        body.add_row(*row)
    console.print(body)


def as_json(found: Explanation | DryRun | CaptureExplanation) -> str:
    """The same as JSON; the fields are those of `sinking` and `capture` in docs/report.md."""
    return json.dumps(facts_of(found), indent=2, ensure_ascii=False)


def _title(asked: Mapping[str, str]) -> str:
    return " · ".join(choice if group in ("model", "file") else f"{group}={choice}" for group, choice in asked.items())


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


def render_dry_run(found: DryRun, console: Console) -> None:
    """Print a diff of nodes, each hunk under its rule and the model's line; no line is broken: it can be piped.

    paddle · target=cpu · mode=reduce-overhead · shapes=static · adapt=paddle      1 rule would be applied
    @@ graph_0 relu_grad @@ rule relu_grad (fill_args) · every bit · paddle.py:12: return torch.ops.paddle.relu_gr…
    - relu_grad: f32[4, 32] = paddle.relu_grad.default(out, dout)
    + threshold_backward: f32[4, 32] = aten.threshold_backward.default(dout, out, 0.0)
    """
    for line in dry_run_lines(found):
        console.print(line, soft_wrap=True, highlight=False)


def dry_run_lines(found: DryRun) -> Iterator[Text]:
    return (line for _, line in rows("dry_run.txt", run=found, title=_title(found.asked)))


def below(settings: Sequence[Setting], path: str) -> tuple[Setting, ...]:
    """Those at or below a dotted path; ConfigError where there is none."""
    found = tuple(one for one in settings if one.option == path or one.option.startswith(f"{path}."))
    if not found:
        parts = dict.fromkeys(one.option.split(".")[0] for one in settings)
        raise ConfigError(unknown("option", path, (*parts, *(one.option for one in settings)), "--under"))
    return found


def render_settings(settings: Sequence[Setting], console: Console, *, under: str = "") -> None:
    """Values by who said them, the command line first, what nobody chose last.

        command line
          passes.cse.stage=post
        conf/mode/eager.yaml, chosen on the command line
          mode.name=eager

    Without `under` the compiler's untouched options are counted and not listed.
    """
    shown = below(settings, under) if under else tuple(one for one in settings if not _untouched(one))
    said_by = sorted(dict.fromkeys(one.said_by for one in shown), key=_rank)
    groups = [(name, [one for one in shown if one.said_by == name]) for name in said_by]
    for _, line in rows("settings.txt", groups=groups, left=0 if under else len(settings) - len(shown)):
        console.print(line, soft_wrap=True)


def _rank(said_by: str) -> int:
    if said_by == COMMAND_LINE:
        return 0
    return 1 if COMMAND_LINE in said_by else 3 if said_by == DEFAULT else 2


def _untouched(one: Setting) -> bool:
    return one.option.startswith(COMPILER) and one.said_by.startswith(DEFAULT_FILES) and one.why_not is None


def settings_json(settings: Sequence[Setting], *, under: str = "") -> str:
    """Every value, or those below `under`."""
    shown = below(settings, under) if under else settings
    return json.dumps([attrs.asdict(one) for one in shown], indent=2, ensure_ascii=False)
