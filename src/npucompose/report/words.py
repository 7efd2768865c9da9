"""Words and numbers for people, shared by everything that prints a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from npucompose.results.graphs import PassFacts, RuleFacts, rules_together
from npucompose.results.measured import (
    Behind,
    CallStatistics,
    Candidate,
    Cause,
    MemoryFacts,
    ModeFacts,
    ModeTime,
    Numerics,
    Share,
    Variant,
)
from npucompose.results.record import Report, Status, choice_name
from npucompose.schema.sizes import as_bytes
from npucompose.table.modes import EAGER, MODES

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "ok",
    "uncompiled": "not compiled",
    "expect_failed": "an expectation failed",
    "numerics_failed": "numerics failed",
    "illegal": "illegal configuration",
    "failed": "failed",
    "timeout": "timeout",
    "memory_limit": "memory limit",
    "crashed": "crashed",
}
STATUS_STYLES: Mapping[Status, str] = {"ok": "bold green", "uncompiled": "bold yellow", "expect_failed": "bold yellow"}
CAUSE_WORDS: Mapping[Cause | None, str] = {
    "model": "differs from itself",
    "tracing": "tracing changed the results",
    "passes": "wrong results",
    "replay": "wrong results",
    None: "wrong results",
}
WAYS: Mapping[Candidate | None, str] = {
    "replay": "replay without guards",
    "compiled": "through torch.compile",
    "eager": "as it is",
    None: "",
}


def log_words(report: Report) -> str | None:
    """`run.log was cut: 4.1 GiB beyond pipeline.log_limit_mb are not kept`."""
    cut = report.log_cut_bytes
    return f"run.log was cut: {as_bytes(cut)} beyond pipeline.log_limit_mb are not kept" if cut else None


def status_words(report: Report) -> str:
    """The status of one run. Only results that differ from those of the graph they should be of are called wrong."""
    if report.status == "uncompiled" and _partly_compiled(report):
        return "partly compiled"
    if report.status != "numerics_failed":
        return STATUS_WORDS[report.status]
    return CAUSE_WORDS[report.numerics.cause if report.numerics is not None else None]


def part_words(found: Numerics) -> str | None:
    """`replay exact; passes changed 3e-05; tracing changed 1.8e-07`; None where results are eager's bit for bit."""
    named = {"replay": found.replay, "passes": found.passes, "tracing": found.tracing}
    words = [f"{name} {_changed(share)}" for name, share in named.items() if share is not None]
    return "; ".join(words) or None


def _changed(share: Share) -> str:
    if share.bitwise:
        return "exact"
    return (
        "changed shapes, structure or infinities" if share.max_abs_err is None else f"changed {share.max_abs_err:.2g}"
    )


def written(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def joined(*parts: Iterable[str]) -> str:
    return " · ".join(word for part in parts for word in part if word)


def as_count(number: int, one: str, many: str | None = None) -> str:
    """`as_count(2, "match", "matches")` is `2 matches`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def ran_as(ran: CallStatistics) -> str:
    """`12 replayed · 3 recorded, 1 of them in another's place · 2 without a recording`."""
    instead = f", {ran.replacements} of them in another's place" if ran.replacements else ""
    return f"{ran.hits} replayed · {ran.captures} recorded{instead} · {ran.eager} without a recording"


def contract_words(rtol: float, atol: float) -> str:
    """`rtol 1e-05, atol 1e-06`; `every bit` where both are 0."""
    given = [f"{name} {value:g}" for name, value in (("rtol", rtol), ("atol", atol)) if value]
    return ", ".join(given) or "every bit"


def as_time(microseconds: float) -> str:
    """`as_time(517.04)` is `517.0 µs`, `as_time(2_500)` is `2.50 ms`."""
    if microseconds < 1e3:
        return f"{microseconds:.1f} µs"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds / 1e6:.2f} s"


def choice(report: Report, group: str) -> str:
    """The name of what a group holds; `?` in the report of a run that was refused before it was known."""
    value = report.experiment.get(group)
    return value if isinstance(value, str) else choice_name(report.experiment, group) or "?"


def title(report: Report) -> Iterator[str]:
    """What ran where; where nothing was compiled, what ran in the place of the mode."""
    for group in ("model", "target", "mode", "shapes"):
        name = choice(report, group)
        if group == "mode" and report.compiled is False:
            name = f"{name}, then eager" if _partly_compiled(report) else f"{EAGER} instead of {name}"
        if name != "?":
            yield name


def _partly_compiled(report: Report) -> bool:
    """Whether graphs of the vendor's making ran, beside calls that ran eagerly."""
    return report.npu is not None and bool(report.npu.captures or report.npu.ge_graphs)


def builds_ge_graphs(report: Report) -> bool:
    """Whether the run's mode hands graphs to GE, so that what GE builds says something; so it is taken to be of a mode
    that is not installed here."""
    name = choice(report, "mode")
    return name not in MODES or MODES.get(name).ge


def is_wrong(report: Report) -> bool:
    """No speed is shown beside results that are not those of the reference."""
    return report.status == "numerics_failed" or (report.numerics is not None and not report.numerics.passed)


def why_untimed(report: Report) -> str:
    """Why a run's times are not shown."""
    cause = report.numerics.cause if report.numerics is not None else None
    if cause == "model":
        return "there is no reference to compare with"
    return "tracing changed the results" if cause == "tracing" else "the results are wrong"


def numerics_notes(report: Report) -> list[str]:
    """What to know of the comparison beside its verdict: what it says of a device, and where it ended early."""
    found = report.numerics
    notes = [] if found is None else [words for words in (part_words(found), found.note) if words]
    if found is not None and found.model and found.cause != "model":
        notes.append(found.model)
    replay = report.stages.replay
    if replay is not None and replay.detached_ended:
        notes.append(f"the comparison of the detached handle ended {replay.detached_ended}")
    return notes


def partition_words(report: Report) -> list[str]:
    """How each graph that is cut was cut: `3 segments, 2 operators outside recordings: cond at model.py:41`."""
    cut = [(graph.id, graph.partition) for graph in report.graphs if graph.partition and graph.partition.outside]
    return [f"{name}: {found.words}" if len(report.graphs) > 1 else found.words for name, found in cut]


def not_written_words(report: Report) -> list[str]:
    """`net.air is not written: CANN makes it, on target=npu`."""
    missing = report.npu.not_written if report.npu is not None else ()
    return [f"{file} is not written: CANN makes it, on target=npu" for file in missing]


def winner_words(report: Report) -> list[str]:
    """Who computes what could be computed in several ways, a line each, however many graphs have it."""
    return list(dict.fromkeys(one.words for graph in report.graphs for one in graph.winners))


def overwrites_words(report: Report) -> list[str]:
    """Graphs that run several times in one call and overwrite what the earlier runs returned."""
    return [graph.overwrites.words(graph.id) for graph in report.graphs if graph.overwrites is not None]


def memory_words(memory: MemoryFacts) -> list[str]:
    """`pool 9.2 KiB (160.0 KiB without reuse, 4.0 KiB live at most)`, `weights 1.0 MiB (8.0 KiB buffers)`, `process
    peak 512.0 MiB`, the device's peak."""
    apart, taken = memory.pool_bytes, memory.taken_bytes
    shared = apart is not None and taken is not None and taken < apart
    beside = {
        "apart": apart if shared else None,
        "without reuse": memory.unplanned_bytes,
        "live at most": None if shared else memory.live_bytes,  # a sum, like `apart`: says nothing of what is shared
    }
    device = {"reserved": memory.device_reserved_peak_bytes, "there": memory.device_total_bytes}
    return [
        *_bytes_words(f"pool {{}}{' that all recordings share' if shared else ''}", taken, beside),
        *_bytes_words("weights {}", memory.weights_bytes, {"buffers": memory.buffers_bytes or None}),
        *_bytes_words("process peak {}", memory.peak_rss_bytes, {}),
        *_bytes_words("device peak {}", memory.device_peak_bytes, device),
    ]


def _bytes_words(words: str, size: int | None, beside: Mapping[str, int | None]) -> Iterator[str]:
    """`pool 9.2 KiB (160.0 KiB without reuse)`: a size, and in brackets those beside it that are known."""
    if size is not None:
        known = ", ".join(f"{as_bytes(n)} {what}" for what, n in beside.items() if n is not None)
        yield words.format(as_bytes(size)) + (f" ({known})" if known else "")


def modes_sentence(facts: ModeFacts) -> str:
    """`max-autotune won: 1.21x as fast as reduce-overhead (quartiles 1.18x to 1.25x), 1.34x as fast as eager (…)`."""
    behind = {one.mode: one.behind for one in facts.modes if one.behind is not None}
    if facts.fastest is None or not behind:
        return "nobody won: no two modes gave results that may be timed"
    if facts.won:
        ahead = [f"{other.ratio:.2f}x as fast as {mode} ({_quartiles(other)})" for mode, other in behind.items()]
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


def mode_words(one: ModeTime) -> list[str]:
    """`p50 8.01 ms through torch.compile · compiled for 35.20 s · equals eager bit for bit`."""
    words = [f"p50 {as_time(one.timing.p50_us)} {WAYS[one.candidate]}"] if one.timing is not None else []
    words += [f"compiled for {as_time(one.compile_s * 1e6)}"] if one.compile_s else []
    words += [result_words(one)] if one.mode != "eager" or not one.passed else []
    return [*words, f"has no effect there: {', '.join(one.idle)}"] if one.idle else words


def mode_cells(one: ModeTime) -> tuple[str, ...]:
    return (
        one.mode,
        WAYS[one.candidate],
        "" if one.timing is None else as_time(one.timing.p50_us),
        "" if one.behind is None else f"{one.behind.ratio:.2f}x",
        "" if one.behind is None else f"{one.behind.low:.2f}x to {one.behind.high:.2f}x",
        as_time(one.compile_s * 1e6) if one.compile_s else "",
        result_words(one),
        ", ".join(one.idle),
    )


def result_words(one: ModeTime | Variant) -> str:
    """How the results compare with eager's."""
    if not one.passed:
        return f"{'not timed: ' if isinstance(one, ModeTime) else ''}{one.problem or 'wrong results'}"
    if one.bitwise:
        return "equals eager bit for bit"
    return f"equals eager within tolerance, largest error {one.max_abs_err or 0.0:.3g}"


def variant_words(variant: Variant) -> list[str]:
    """`634 nodes · 530 kernels · p50 91.0 µs · 1.10x as long · equals eager bit for bit`."""
    words = [as_count(variant.nodes, "node")] if variant.nodes is not None else []
    words += [as_count(variant.kernels, "kernel")] if variant.kernels is not None else []
    words += [f"p50 {as_time(variant.timing.p50_us)}"] if variant.timing is not None else []
    words += [f"{variant.ratio:.2f}x as long"] if variant.ratio is not None else []
    return [*words, result_words(variant)]


def variant_cells(variant: Variant) -> tuple[Any, ...]:
    return (
        variant.name,
        variant.nodes,
        variant.kernels,
        "" if variant.passes_s is None else as_time(variant.passes_s * 1e6),
        "" if variant.timing is None else as_time(variant.timing.p50_us),
        "" if variant.ratio is None else f"{variant.ratio:.2f}x",
        result_words(variant),
    )


def passes_together(report: Report) -> Iterator[tuple[str, list[str]]]:
    """(its line, a line for each of its rules) of each pass, its runs over several graphs together."""
    for stage, name in dict.fromkeys((one.stage, one.name) for one in report.passes):
        runs = [one for one in report.passes if (one.stage, one.name) == (stage, name)]
        before, after = sum(one.nodes_before for one in runs), sum(one.nodes_after for one in runs)
        errors = [one.max_abs_err for one in runs if one.max_abs_err is not None]
        words = [
            f"{stage} {name}",
            as_count(sum(one.matches for one in runs), "match", "matches"),
            f"{before} -> {after} nodes",
            *_moves(runs),
            *_folds(runs),
            as_time(sum(one.seconds for one in runs) * 1e6),
            *([f"keeps its promise, largest error {max(errors):.3g}"] if errors else []),
        ]
        yield " · ".join(words), [" · ".join(rule_words(rule)) for rule in rules_together(one.rules for one in runs)]


def _folds(runs: Sequence[PassFacts]) -> list[str]:
    """`2 parameters folded into 60 B of constants`."""
    folds = [one.folds for one in runs if one.folds is not None and one.folds.parameters]
    names = sum(len(one.parameters) for one in folds)
    size = as_bytes(sum(one.bytes for one in folds))
    return [f"{as_count(names, 'parameter')} folded into {size} of constants"] if folds else []


def _moves(runs: Sequence[PassFacts]) -> list[str]:
    """`24 -> 2 permutes · 8 -> 0 casts` of a clean-up; nothing for what was not there."""
    moves = [one.moves for one in runs if one.moves is not None]
    pairs = {
        "permutes": (sum(m.permutes_before for m in moves), sum(m.permutes_after for m in moves)),
        "casts": (sum(m.casts_before for m in moves), sum(m.casts_after for m in moves)),
    }
    return [f"{before} -> {after} {what}" for what, (before, after) in pairs.items() if before]


def rule_words(rule: RuleFacts) -> list[str]:
    """`nll_loss_double · 1 match · 3 casts put in · largest error 1.86e-08 of rtol 1e-05, atol 1e-06`."""
    words = [rule.rule, as_count(rule.matches, "match", "matches")]
    put_in = ((rule.casts, "cast"), (rule.permutes, "permute"))
    words += [f"{as_count(count, what)} put in" for count, what in put_in if count]
    words += [f"{as_count(rule.unchecked, 'cast')} not checked for range"] if rule.unchecked else []
    words += [f"through {rule.way}"] if rule.way else []
    error = f"largest error {rule.max_abs_err:.3g} of " if rule.max_abs_err is not None else ""
    return [*words, f"{error}{contract_words(rule.rtol, rule.atol)}"]
