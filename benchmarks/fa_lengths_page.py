"""docs/fa_lengths.md from the results that `fa_lengths.py` left. Runs no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fa_lengths_rules import WAYS, disagreements

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fa_lengths.md"
HEAD = """# Lengths of attention, and what becomes of them

Written by `python benchmarks/fa_lengths.py` from `benchmarks/results/fa_lengths.json`; no cell is by hand. Each row is
one model of `benchmarks/fa_models.py`, with the settings of a path of [sinking.md](sinking.md), converted by TorchAir's
own Python (target=npu_offline mode=max-autotune). *Handed to GE* is read from the graph as libge would get it: its
sizes (*static*, or *dynamic* where a Data node has -1) and the node that feeds the lengths; *forced* is a node whose
shape TorchAir forces to be unknown. Or it is the operator that was not converted. *Verdict* is what
`npucompose explain` says: the FX graph, the GE graph, GE's build and the path; *derived* is what it says without having
seen the GE graph, where that is something else. GE's build is nobody's measurement: the rules of sinking.md give it,
from what was handed over in one column and from the FX graph in the other.
"""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole text."""
    lines = [HEAD]
    for way, words in WAYS.items():
        rows = [one for one in results if one["lengths"] == way]
        lines += [f"## {words[0].upper()}{words[1:]}", "", *_table(rows), ""]
    wrong = sum(bool(disagreements(one)) for one in results)
    lines.append(f"{len(results)} rows; rows in which a verdict is not what was handed over: {wrong}.")
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| settings of path | operator | handed to GE | verdict: FX, GE, build | path | derived |"
    yield "|" + "---|" * 6
    for one in sorted(rows, key=lambda one: (one["path"], one["op"])):
        yield f"| {one['path']} | {one['op']} | {' | '.join(_cells(one))} |"


def _cells(one: Mapping[str, Any]) -> list[str]:
    if "refused" in one:
        return [f"nothing: {one['refused'].splitlines()[0]}", "refused", "none", "the same"]
    said, derived = one["explain"], one["derived"]
    path = "none" if said["path"] is None else str(said["path"])
    return [_handed(one), _words(said), path, "the same" if said == derived else _words(derived)]


def _handed(one: Mapping[str, Any]) -> str:
    failure = one["failure"]
    if failure is None:
        return "; then ".join(_graph(graph) for graph in one["converted"])
    if failure["operator"] is None:
        return f"nothing: torch makes no graph ({_shortly(failure['words'])})"
    where = (failure["source"] or "").partition(" in ")[0]
    return f"nothing: no converter for `{failure['operator']}`, {where}"


def _graph(graph: Mapping[str, Any]) -> str:
    sizes = "dynamic" if graph["unknown_sizes"] else "static"
    words = f"{sizes}, {' and '.join(graph['lengths']) or 'nothing'}"
    return words + (", forced" if graph["forced"] else "") + (", gears" if graph["gears"] else "")


def _words(verdict: Mapping[str, Any]) -> str:
    return ", ".join(verdict[name] for name in ("fx_graph", "ge_graph", "ge_build"))


def _shortly(words: str) -> str:
    said = words.removeprefix("torch.compile cannot make one graph of the model: ").partition(" at ")[0]
    return said.partition(":")[0]
