"""The part of report.html about sinking: three verdicts, who is to blame, the steps of the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from npucompose.report.explain import TITLES, path_words, value_words
from npucompose.report.markup import Html, table, tag
from npucompose.schema.sinking import Blame, SinkingFacts, Step


def sinking(facts: SinkingFacts) -> Iterator[Html]:
    about = f"{path_words(facts)} of docs/sinking.md" if facts.path is not None else path_words(facts)
    yield tag("p", about, f" · {facts.product}" if facts.product else None)
    yield tag("div", *_verdicts(facts), class_="tiles wide")
    if facts.blame:
        yield table(("to blame", "operator", "why", "rule"), [_blame(one) for one in facts.blame], class_="prose")
    if facts.steps:
        yield tag("ol", *(_step(step) for step in facts.steps), class_="steps")


def _verdicts(facts: SinkingFacts) -> Iterator[Html]:
    for name, verdict in facts.verdicts().items():
        evidence = (tag("li", sentence) for sentence in verdict.evidence)
        value, *certainty = value_words(verdict)
        yield tag(
            "div",
            tag("span", TITLES[name]),
            tag("b", value, class_=f"verdict {value}"),
            tag("span", *certainty),
            tag("ul", *evidence) if verdict.evidence else None,
        )


def _blame(one: Blame) -> tuple[object, ...]:
    who = [one.argument or one.node]
    who += [f"dimension {one.dimension}"] if one.dimension is not None else []
    who += [f"symbol {one.symbol}"] if one.symbol else []
    where = tag("div", tag("code", one.source)) if one.source else None
    operator = tag("code", one.operator)
    return ", ".join(who), operator, tag("div", one.reason, where), one.rule or ""


def _step(step: Step) -> Html:
    return tag(
        "li",
        tag("b", f"{step.id} {step.title} "),
        tag("span", step.status, class_=f"chip {step.status}"),
        *(tag("div", sentence, class_="dim") for sentence in step.evidence),
        tag("pre", step.fix) if step.fix is not None else None,
    )
