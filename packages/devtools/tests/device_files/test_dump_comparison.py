"""Two dumps made by hand, compared operator by operator: the whole answer, as a golden text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import yaml
from attrs import frozen

from npucompose.results.artefacts import DumpedOperator, DumpedValue, FxListing, ListedNode
from npucompose.results.measured import NumericTolerance
from npucompose.table.structure import facts_of
from npucompose_devtools.accuracy.command import _lines
from npucompose_devtools.accuracy.compare import DumpComparison, Question, compared

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


@frozen
class Dump:
    """Operators whose values are at hand: a value's file is its number."""

    name: str
    operators: tuple[DumpedOperator, ...]
    values: tuple[torch.Tensor, ...]

    def load(self, value: DumpedValue) -> torch.Tensor:
        return self.values[int(value.file or 0)]


Given = list[Any]
"""Tensors, or mappings of statistics."""


def dump(name: str, calls: Mapping[str, tuple[str, Given, Given]], source: str | None = None) -> Dump:
    values: list[torch.Tensor] = []

    def slots(given: Given) -> tuple[DumpedValue, ...]:
        found: list[DumpedValue] = []
        for at, one in enumerate(given):
            if isinstance(one, torch.Tensor):
                found.append(DumpedValue(slot=str(at), file=str(len(values))))
                values.append(one)
            else:
                found.append(DumpedValue(slot=str(at), shape=(2, 2), dtype="float32", statistics=one))
        return tuple(found)

    operators = tuple(
        DumpedOperator(name=node, operator=operator, inputs=slots(reads), outputs=slots(made), source=source)
        for node, (operator, reads, made) in calls.items()
    )
    return Dump(name, operators, tuple(values))


def one(operator: str, made: Any, reads: Any = X, name: str = "n") -> dict[str, tuple[str, Given, Given]]:
    return {name: (operator, [reads], [made])}


def listing(name: str, *nodes: ListedNode) -> FxListing:
    return FxListing(name=name, nodes=nodes)


NODE = ListedNode(name="n", operator="aten.abs.default", dtype="bfloat16", source="m.py:3 in f: x")
OTHER = ListedNode(name="o", operator="aten.neg.default", dtype=None, source=None)
FIRST, THEN = "001_graph.txt", "002_aot_graph_after_fuse_all.txt"
NEAR, FAR = X + 1e-6, X + 0.25
ABS = "aten.abs.default"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Question]] = {
    "the same bits": (one(ABS, X), one(ABS, X.clone()), Question()),
    "within its tolerance": (one(ABS, X), one(ABS, NEAR), Question()),
    "beyond it, from the same bits": (one(ABS, X), one(ABS, FAR), Question()),
    "beyond it, from others": (one(ABS, X), one(ABS, FAR, NEAR), Question()),
    "beyond it, from what was far off": (one(ABS, X), one(ABS, FAR, FAR), Question()),
    "what only moves data": (one("aten.t.default", X), one("aten.t.default", NEAR), Question()),
    "what moves data that differed": (one("aten.t.default", X), one("aten.t.default", NEAR, NEAR), Question()),
    "a rule that allows more": (one(ABS, X), one(ABS, FAR), Question(rules={"abs": NumericTolerance(0.0, 0.3)})),
    "a dtype that is named": (one(ABS, X), one(ABS, X + 0.005), Question(dtype="float16")),
    "a dtype of the listing": (one(ABS, X), one(ABS, X + 0.005), Question(listings=(listing(FIRST, NODE),))),
    "a node that a pass made": (
        one(ABS, X), one(ABS, FAR), Question(listings=(listing(FIRST, OTHER), listing(THEN, OTHER, NODE))),
    ),
    "a node of the first listing": (
        one(ABS, X), one(ABS, FAR), Question(listings=(listing(FIRST, NODE), listing(THEN, NODE))),
    ),
    "half precision": (one(ABS, X.half()), one(ABS, X.half() + 0.005), Question()),
    "half precision beside whole": (one(ABS, X), one(ABS, X.half() + 0.005), Question()),
    "whole numbers": (one(ABS, X.long()), one(ABS, X.long() + 1), Question()),
    "another shape": (one(ABS, X), one(ABS, X[:1]), Question()),
    "no number": (one(ABS, X), one(ABS, X * float("nan")), Question()),
    "fewer results": ({"n": (ABS, [X], [X, X])}, {"n": (ABS, [X], [X])}, Question()),
    "two results, one of them off": ({"n": (ABS, [X], [X, X])}, {"n": (ABS, [X], [NEAR, FAR])}, Question()),
    "nothing dumped of the inputs": ({"n": (ABS, [], [X])}, {"n": (ABS, [X], [FAR])}, Question()),
    "statistics": (one(ABS, {"Max": 1.0}, {}), one(ABS, {"Max": 1.0}, {}), Question()),
    "statistics that differ": (one(ABS, {"Max": 1.0}, {"Max": 1.0}), one(ABS, {"Max": 2.0}, {"Max": 1.0}), Question()),
    "several, up to the first beyond": (
        {**one(ABS, X, name="a"), **one(ABS, X, name="b"), **one(ABS, X, name="c"), **one(ABS, X, name="d")},
        {**one(ABS, X + 1e-6, name="a"), **one(ABS, X + 2e-6, name="b"), **one(ABS, FAR, name="c"),
         **one(ABS, FAR, name="d")},
        Question(),
    ),
    "several within, the largest first": (
        {**one(ABS, X, name="a"), **one(ABS, X, name="b")},
        {**one(ABS, X + 3e-6, name="a"), **one(ABS, X + 1e-6, name="b")}, Question(),
    ),
    "by the order of their calls": (
        {**one(ABS, X, name="a"), **one("aten.neg.default", X, name="b"), **one(ABS, X, name="c")},
        {**one("abs", X, name="x"), **one("abs", X, name="y"), **one("exp", X, name="b")}, Question(),
    ),
}  # fmt: skip


def plain(found: DumpComparison) -> Any:
    """Errors are measured in float32: six digits of them."""
    facts = facts_of(found)
    for name in ("first", "largest"):
        if facts.get(name) and facts[name].get("error") is not None:
            facts[name]["error"] = float(f"{facts[name]['error']:.2g}")
    return {name: value for name, value in facts.items() if value not in (None, [], {}, ())}


def test_two_dumps_are_compared_like_this(golden: Callable[[str, str], None]) -> None:
    told: list[str] = []
    for about, (eager, graph, question) in CASES.items():
        found = compared(dump("e", eager), dump("g", graph), question)
        facts = yaml.safe_dump(plain(found), sort_keys=False, width=110)
        told.append(f"# {about}\n{facts}---\n" + "".join(f"{line}\n" for line in _lines(found)))
    golden("device_files/comparisons.txt", "\n".join(told))


def test_the_line_of_the_graphs_own_dump_goes_before_those_of_others() -> None:
    asked = Question(listings=(listing(FIRST, NODE),))

    def source(ours: str | None, theirs: str | None, question: Question = asked) -> str | None:
        first = compared(dump("e", one(ABS, X), theirs), dump("g", one(ABS, FAR), ours), question).first
        assert first is not None
        return first.source

    assert source("ours", "theirs") == "ours"
    assert source(None, "theirs") == "theirs"
    assert source(None, None) == "m.py:3 in f: x"
    assert source(None, None, Question()) is None
