"""docs/op_db.md from the results that `op_db.py` left. Runs no operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "op_db.md"
MEANING = {
    "native": "recorded and replayed: Inductor's kernels by their address, everything else as in `reduce-overhead`",
    "wrapper": "Inductor's wrapper calls the kernels, for the reason below",
    "no graph": "nothing is left to compile once Dynamo has traced it",
    "as inductor": "not within the tolerance of eager, and what `torch.compile` with Inductor gives is the same",
    "refused": "torch does not compile it",
    "no sample": "torch has no sample of it that eager takes on the CPU",
    "wrong": "other results than eager, float64 and Inductor",
    "crashed": "the process died",
    "out of time": "it took longer than its process may",
}
HEAD = """# torch's operators through max-autotune

Written by `python -m benchmarks.op_db` (`make op-db`) from `benchmarks/results/op_db.json`; no figure is by hand. Every
operator of torch's own test samples (`op_db`), in float32 where that is supported: some samples are compiled with
`mode=max-autotune`, recorded by a first call and replayed by two more on other values. Results are right when they are
as near to eager's as the dtype lets expect, or not further than twice eager's own error from those of the same operator
in float64; a replay must also be what Inductor's own wrapper makes of the same kernels, bit for bit. An operator is
what the worst of its samples is. Where Dynamo takes an operator only with torch's switches for what depends on data
(`capture_dynamic_output_shape_ops`, `capture_scalar_outputs`), they are on.
"""


def page(results: dict[str, Any]) -> str:
    """The whole text."""
    operators: Sequence[dict[str, Any]] = results["operators"]
    return "\n".join(
        (HEAD, *_totals(operators, results["all"]), *_reasons(operators), "", f"torch {results['torch']}", "")
    )


def _totals(operators: Sequence[dict[str, Any]], of: int) -> Iterator[str]:
    counted = Counter(entry["kind"] for entry in operators)
    yield "| | operators | what it means |"
    yield "|---|---|---|"
    for kind, meaning in MEANING.items():
        if counted[kind] or kind in ("wrong", "crashed"):
            yield f"| {kind} | {counted[kind]} | {meaning} |"
    samples = sum(sum(entry.get("samples", {}).values()) for entry in operators)
    through = counted["native"] + counted["wrapper"]
    yield ""
    judged = f"{len(operators)} operators" if len(operators) == of else f"{len(operators)} of {of} operators so far"
    yield f"{judged}, {samples} samples; natively or by the wrapper: {through}."


def _reasons(operators: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Every operator that is not replayed, and why, in the words of the one that says so."""
    for kind in MEANING:
        named = [entry for entry in operators if entry["kind"] == kind]
        if kind == "native" or not named:
            continue
        yield from ("", f"## {kind[0].upper()}{kind[1:]}", "", "| operator | dtype | why |", "|---|---|---|")
        for entry in named:
            yield f"| `{entry['operator']}` | {entry.get('dtype', '')} | {_cell(entry.get('words', ''))} |"


def _cell(words: str) -> str:
    """Text of torch in a cell of a table."""
    return words.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
