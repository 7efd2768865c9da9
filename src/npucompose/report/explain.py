"""What `npucompose explain` prints beside verdicts: a dry run of adaptation rules; who set each option; all of it as
JSON. Pure: reads results only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import attrs
from rich.console import Console
from rich.text import Text

from npucompose.console import asked_words
from npucompose.errors import ConfigError, unknown
from npucompose.npu.capture.explanation import CaptureExplanation
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.report.terminal import rows
from npucompose.results.effective import COMMAND_LINE, DEFAULT, Setting
from npucompose.results.graphs import DryRun
from npucompose.table.structure import facts_of

COMPILER = "compiler."
DEFAULT_FILES = (DEFAULT, "conf/compiler/default.yaml")
"""Who says what nobody chose, of the compiler's options."""


def as_json(found: Explanation | DryRun | CaptureExplanation) -> str:
    """The same as JSON; the fields are those of `sinking` and `capture` in docs/report.md."""
    return json.dumps(facts_of(found), indent=2, ensure_ascii=False)


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
    return (line for _, line in rows("dry_run.txt", run=found, title=asked_words(found.asked)))


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
