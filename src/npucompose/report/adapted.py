"""A dry run of adaptation rules for a person: a diff of nodes, each hunk under its rule and the model's line. Pure.

paddle · target=cpu · mode=reduce-overhead · shapes=static · adapt=paddle      1 rule would be applied
@@ graph_0 relu_grad @@ rule relu_grad (fill_args) · every bit · paddle.py:12: return torch.ops.paddle.relu_grad(…)
- relu_grad: f32[4, 32] = paddle.relu_grad.default(out, dout)
+ threshold_backward: f32[4, 32] = aten.threshold_backward.default(dout, out, 0.0)
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from npucompose.report.words import as_count, contract_words
from npucompose.schema.adapted import Adaptation, DryRun
from npucompose.schema.facts import facts_of


def render(found: DryRun, console: Console) -> None:
    """Print it; colours only on a terminal, and no line is broken: the diff can be piped."""
    for line in lines(found):
        console.print(line, soft_wrap=True, highlight=False)


def as_json(found: DryRun) -> str:
    return json.dumps(facts_of(found), indent=2, ensure_ascii=False)


def lines(found: DryRun) -> Iterator[Text]:
    title = " · ".join(choice if group == "model" else f"{group}={choice}" for group, choice in found.asked.items())
    yield Text(title, style="bold")
    for one in found.adaptations:
        yield from _hunk(one)
    for text in found.untouched:
        yield Text(f"  no rule holds for {text}", style="dim")
    if found.compiler is not None:
        yield Text(f"the compiler then says: {found.compiler}", style="yellow")
    rejected = len(found.rejections)
    words = [as_count(found.graphs, "graph"), f"{as_count(len(found.adaptations) - rejected, 'node')} adapted"]
    words.append(f"{rejected} rejected")
    words += [f"{len(found.untouched)} left as they are"] if found.untouched else []
    yield Text(" · ".join(words), style="bold")


def _hunk(one: Adaptation) -> Iterator[Text]:
    rule = f"rule {one.rule} ({one.kind})"
    if one.rejected is None:
        rule += f" · {contract_words(one.rtol, one.atol)}{', ranges checked' if one.range_check else ''}"
    yield Text(" · ".join(word for word in (f"@@ {one.graph} {one.node} @@ {rule}", one.source) if word), style="cyan")
    yield Text(f"- {one.before}", style="red")
    for text in one.after:
        yield Text(f"+ {text}", style="green")
    if one.rejected is not None:
        yield Text(f"! {one.rejected}", style="bold red")
