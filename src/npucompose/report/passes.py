"""What passes and their rules did, and what each is worth, for the terminal and for report.html. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from npucompose.report.markup import Html, table
from npucompose.report.words import as_bytes, as_count, as_time, contract_words
from npucompose.schema.ablation import Variant
from npucompose.schema.passes import RuleFacts, rules_together
from npucompose.schema.record import PassFacts, Report

Row = tuple[str, Text]


def rows_of_passes(report: Report) -> Iterator[Row]:
    """One line for each pass, its runs over several graphs together."""
    for stage, name in dict.fromkeys((one.stage, one.name) for one in report.passes):
        runs = [one for one in report.passes if (one.stage, one.name) == (stage, name)]
        matches = as_count(sum(one.matches for one in runs), "match", "matches")
        before, after = sum(one.nodes_before for one in runs), sum(one.nodes_after for one in runs)
        seconds = as_time(sum(one.seconds for one in runs) * 1e6)
        words = [f"{stage} {name}", matches, f"{before} -> {after} nodes", *_moves(runs), *_folds(runs), seconds]
        errors = [one.max_abs_err for one in runs if one.max_abs_err is not None]
        words += [f"keeps its promise, largest error {max(errors):.3g}"] if errors else []
        yield "passes", Text(" · ".join(words))
        for rule in rules_together(one.rules for one in runs):
            yield "", Text(" · ".join(_rule(rule)), style="dim")
    if report.rejected:
        yield "passes", Text(f"{as_count(len(report.rejected), 'operator')} rejected by adaptation rules", style="red")


def _folds(runs: Sequence[PassFacts]) -> list[str]:
    """`2 parameters are 60 B of constants`."""
    folds = [one.folds for one in runs if one.folds is not None and one.folds.parameters]
    names = sum(len(one.parameters) for one in folds)
    held = as_bytes(sum(one.bytes for one in folds))
    return [f"{as_count(names, 'parameter')} folded into {held} of constants"] if folds else []


def _rule(rule: RuleFacts) -> list[str]:
    """`nll_loss_double · 1 match · 3 casts put in · largest error 1.86e-08 of rtol 1e-05, atol 1e-06`."""
    words = [rule.rule, as_count(rule.matches, "match", "matches")]
    put_in = ((rule.casts, "cast"), (rule.permutes, "permute"))
    words += [f"{as_count(count, what)} put in" for count, what in put_in if count]
    words += [f"{as_count(rule.unchecked, 'cast')} not checked for range"] if rule.unchecked else []
    words += [f"through {rule.way}"] if rule.way else []
    error = f"largest error {rule.max_abs_err:.3g} of " if rule.max_abs_err is not None else ""
    return [*words, f"{error}{contract_words(rule.rtol, rule.atol)}"]


def _moves(runs: Sequence[PassFacts]) -> list[str]:
    """`24 -> 2 permutes · 8 -> 0 casts` of a clean-up; nothing for what was not there."""
    moves = [one.moves for one in runs if one.moves is not None]
    pairs = {
        "permutes": (sum(m.permutes_before for m in moves), sum(m.permutes_after for m in moves)),
        "casts": (sum(m.casts_before for m in moves), sum(m.casts_after for m in moves)),
    }
    return [f"{before} -> {after} {what}" for what, (before, after) in pairs.items() if before]


def rows_of_ablation(report: Report) -> Iterator[Row]:
    """One line for each list of passes, as it compares with all of them."""
    found = report.stages.ablation
    for variant in found.variants if found is not None else ():
        style = "" if variant.passed else "red"
        yield "ablation", Text(" · ".join((variant.name, *ablated(variant))), style=style)


def ablated(variant: Variant) -> list[str]:
    """`634 nodes · 530 kernels · p50 91.0 µs · 1.10x as long · equals eager bit for bit`."""
    words = [as_count(variant.nodes, "node")] if variant.nodes is not None else []
    words += [as_count(variant.kernels, "kernel")] if variant.kernels is not None else []
    words += [f"p50 {as_time(variant.timing.p50_us)}"] if variant.timing is not None else []
    words += [f"{variant.ratio:.2f}x as long"] if variant.ratio is not None else []
    return [*words, result_words(variant)]


def result_words(variant: Variant) -> str:
    if not variant.passed:
        return variant.problem or "wrong results"
    if variant.bitwise:
        return "equals eager bit for bit"
    return f"equals eager within tolerance, largest error {variant.max_abs_err or 0.0:.3g}"


def tables_of_passes(report: Report) -> Iterator[Html]:
    if report.passes:
        rows = [
            (p.name, p.stage, p.graph or "", p.matches, f"{p.nodes_before} → {p.nodes_after}", as_time(p.seconds * 1e6))
            for p in report.passes
        ]
        yield table(("pass", "stage", "graph", "matches", "nodes", "took"), rows)
    rules = rules_together(one.rules for one in report.passes)
    if rules:
        yield table(("rule", "what it did"), [(rule.rule, " · ".join(_rule(rule)[1:])) for rule in rules])
    if report.rejected:
        yield table(("rejected",), [(sentence,) for sentence in report.rejected])


def tables_of_ablation(report: Report) -> Iterator[Html]:
    found = report.stages.ablation
    if found is not None:
        head = ("passes", "nodes", "kernels", "passes took", "p50", "by all passes", "result")
        yield table(head, [_cells(variant) for variant in found.variants])


def _cells(variant: Variant) -> tuple[str, ...]:
    def known(number: int | None) -> str:
        return "" if number is None else str(number)

    return (
        variant.name,
        known(variant.nodes),
        known(variant.kernels),
        "" if variant.passes_s is None else as_time(variant.passes_s * 1e6),
        "" if variant.timing is None else as_time(variant.timing.p50_us),
        "" if variant.ratio is None else f"{variant.ratio:.2f}x",
        result_words(variant),
    )
