"""What the terminal and report.html both say of modes, passes and their rules, and of what each pass is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from npucompose.report.words import as_bytes, as_count, as_time, contract_words, is_wrong
from npucompose.results.graphs import RuleFacts, rules_together
from npucompose.results.measured import Behind, Candidate, ModeFacts, ModeTime, Variant
from npucompose.results.record import PassFacts, Report

Row = tuple[str, Text]

WAYS: dict[Candidate, str] = {"replay": "detached replay", "compiled": "through torch.compile", "eager": "as it is"}


def sentence(facts: ModeFacts) -> str:
    """`max-autotune won: 1.21x as fast as reduce-overhead (quartiles 1.18x to 1.25x), 1.34x as fast as eager (…)`."""
    behind = {one.mode: one.behind for one in facts.modes if one.behind is not None}
    if facts.fastest is None or not behind:
        return "nobody won: no two modes gave results that may be timed"
    if facts.won:
        ahead = [f"{told.ratio:.2f}x as fast as {mode} ({_quartiles(told)})" for mode, told in behind.items()]
        return f"{facts.fastest} won: {', '.join(ahead)}"
    mode, nearest = min(behind.items(), key=lambda item: item[1].low)
    if nearest.low > 1:
        rounds = max(len(one.timing.samples_us) for one in facts.modes if one.timing is not None)
        return f"nobody is said to have won: {rounds} rounds are too few; {facts.fastest} was ahead"
    return (
        f"nobody won: {facts.fastest} and {mode} are even within the spread "
        f"({nearest.ratio:.2f}x, {_quartiles(nearest)})"
    )


def _quartiles(behind: Behind) -> str:
    return f"quartiles {behind.low:.2f}x to {behind.high:.2f}x"


def rows_of_modes(report: Report) -> Iterator[Row]:
    facts = report.stages.modes
    if facts is None or is_wrong(report):
        return
    yield "modes", Text(sentence(facts), style="bold" if facts.won else "yellow")
    for one in facts.modes:
        yield "", Text(" · ".join((one.mode, *_mode_words(one))), style="dim" if one.passed else "red")


def _mode_words(one: ModeTime) -> list[str]:
    """`p50 8.01 ms through torch.compile · compiled for 35.20 s · equals eager bit for bit`."""
    words = [f"p50 {as_time(one.timing.p50_us)} {_way(one)}"] if one.timing is not None else []
    words += [f"compiled for {as_time(one.compile_s * 1e6)}"] if one.compile_s else []
    words += [_result(one)] if one.mode != "eager" or not one.passed else []
    return [*words, f"does not act there: {', '.join(one.idle)}"] if one.idle else words


def _way(one: ModeTime) -> str:
    return "" if one.candidate is None else WAYS[one.candidate]


def _result(one: ModeTime) -> str:
    if not one.passed:
        return f"not timed: {one.problem or 'wrong results'}"
    if one.bitwise:
        return "equals eager bit for bit"
    return f"equals eager within tolerance, largest error {one.max_abs_err or 0.0:.3g}"


def mode_cells(one: ModeTime) -> tuple[str, ...]:
    return (
        one.mode,
        _way(one),
        "" if one.timing is None else as_time(one.timing.p50_us),
        "" if one.behind is None else f"{one.behind.ratio:.2f}x",
        "" if one.behind is None else f"{one.behind.low:.2f}x to {one.behind.high:.2f}x",
        as_time(one.compile_s * 1e6) if one.compile_s else "",
        _result(one),
        ", ".join(one.idle),
    )


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
            yield "", Text(" · ".join(rule_words(rule)), style="dim")
    if report.rejected:
        yield "passes", Text(f"{as_count(len(report.rejected), 'operator')} rejected by adaptation rules", style="red")


def _folds(runs: Sequence[PassFacts]) -> list[str]:
    """`2 parameters are 60 B of constants`."""
    folds = [one.folds for one in runs if one.folds is not None and one.folds.parameters]
    names = sum(len(one.parameters) for one in folds)
    held = as_bytes(sum(one.bytes for one in folds))
    return [f"{as_count(names, 'parameter')} folded into {held} of constants"] if folds else []


def rule_words(rule: RuleFacts) -> list[str]:
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


def ablation_cells(variant: Variant) -> tuple[str, ...]:
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
