"""What became of a graph: how it was cut, what passes and adaptation rules did with it, who computes what could be
computed in several ways, and how it can be drawn.

The drawing is stored beside report.json as `graphs/graph_N.json`: a report stays small however large the graph. Knows
no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import attrs
from attrs import field, frozen

from npucompose.results.effective import Effective

By = Literal["measured", "remembered", "pinned", "default"]
MOST_PARTS = 4
"""Parts of a graph that a message names."""


@frozen(kw_only=True)
class Winner:
    """One part of a graph and who computes it. Times are medians in microseconds of calls made in turns."""

    key: str
    """`mm_8x512_512x256_float32`: equal wherever the same is computed, so that it can be pinned."""
    winner: str
    by: By
    """Measured now; remembered on this machine; pinned by `target.kernels`; `default` in reports of before."""
    why: str = ""
    """Why nothing was measured: in reports of before, as are `gain`, `rounds` and `max_abs_err`."""
    times_us: Mapping[str, float] = field(factory=dict[str, float])
    gain: tuple[float, float] | None = None
    """The quartiles, over the rounds, of the nearest rival's time divided by the winner's."""
    rounds: int = 0
    max_abs_err: float | None = None
    """Between the results of the two; None where they were not compared, and for products."""
    here: str | None = None
    """What this machine remembers as faster, where something else is pinned."""

    @property
    def rival(self) -> str | None:
        """The fastest of the others; None where no time of the winner is known to compare it with."""
        if not self.times_us.get(self.winner):
            return None
        others = {name: us for name, us in self.times_us.items() if name != self.winner}
        return min(others, key=others.__getitem__, default=None)

    @property
    def words(self) -> str:
        """`linear_8x512x256: onednn, 2.31x as fast as mkl (quartiles 2.20x to 2.40x of 40 rounds), remembered`."""
        parts = [f"{self.key}: {self.winner}"]
        if self.rival is not None:
            words = f"{self.times_us[self.rival] / self.times_us[self.winner]:.2f}x as fast as {self.rival}"
            low, high = self.gain or (0, 0)
            parts.append(words + (f" (quartiles {low:.2f}x to {high:.2f}x of {self.rounds})" if self.gain else ""))
        if self.max_abs_err is not None:
            parts.append(f"results differ by {self.max_abs_err:.2g}")
        parts.append(self.by if self.by != "default" else "not measured")
        if self.here is not None:
            parts.append(f"this machine would choose {self.here}")
        return ", ".join(parts) + (f": {self.why}" if self.why else "")


def pins_of_nothing(pinned: Mapping[str, str], found: Iterable[Winner]) -> tuple[Effective, ...]:
    """What `target.kernels` names and no graph of the run has."""
    parts = {winner.key: winner for winner in found}
    why = f"no graph of this run has such a part; {_listed(parts)}"
    return tuple(
        Effective(option=f"target.kernels.{key}", requested=value, effective=None, why=why)
        for key, value in pinned.items()
        if key not in parts
    )


def _listed(parts: Iterable[str]) -> str:
    names = list(parts)
    more = f" and {len(names) - MOST_PARTS} more" if len(names) > MOST_PARTS else ""
    return f"it has {', '.join(names[:MOST_PARTS])}{more}" if names else "it has none that can be chosen"


SHOWN = 3
"""Operators that a line of text names; the report has all."""


@frozen(kw_only=True)
class Outside:
    """An operator that stands outside of all recordings, and why."""

    node: str
    operator: str
    reason: str
    source: str = ""
    """`model.py:41: y = torch.cond(…)`; empty where nobody knows the line."""

    @classmethod
    def whole_graph(cls, reason: str) -> Outside:
        return cls(node="", operator="the whole graph", reason=reason)

    @property
    def words(self) -> str:
        """`cond at model.py:41`."""
        place = self.source.split(": ", 1)[0].replace("\\", "/").rpartition("/")[2]
        return f"{self.operator} at {place}" if place else self.operator


@frozen(kw_only=True)
class Partition:
    """One graph: so many recorded segments, and what runs between them."""

    segments: int = 1
    outside: tuple[Outside, ...] = ()

    @property
    def words(self) -> str:
        """`3 segments, 2 operators outside recordings: cond at model.py:41, nonzero at model.py:50`."""
        if not self.outside:
            return counted(self.segments, "segment")
        count = counted(len(self.outside), "operator")
        return f"{counted(self.segments, 'segment')}, {count} outside recordings: {named(self.outside)}"


def refused_on_npu(target: str, outside: Iterable[Outside]) -> tuple[Effective, ...]:
    """What a run on this target would not get on an NPU: TorchAir cuts no graph."""
    found = tuple(outside)
    if not found:
        return ()
    return (Effective(option="target", requested=target, effective=target, why=npu_words(found)),)


def npu_words(outside: Iterable[Outside]) -> str:
    """`target=npu refuses this graph: cond at model.py:41`."""
    return f"target=npu refuses this graph: {named(outside)}"


def named(outside: Iterable[Outside]) -> str:
    """The first of them by operator and line; one that stands on one line several times is named once."""
    words = list(dict.fromkeys(one.words for one in outside))
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@frozen(kw_only=True)
class RuleFacts:
    """What one adaptation rule did to one graph."""

    rule: str
    kind: str
    op: str
    matches: int
    casts: int = 0
    """Casts that it put in."""
    permutes: int = 0
    """Permutes that it put in."""
    unchecked: int = 0
    """Casts whose range its contract wants checked, in a mode that cannot check at run time."""
    rtol: float = 0.0
    atol: float = 0.0
    """Its contract; both 0 is bitwise."""
    max_abs_err: float | None = None
    """The largest difference of one application, on random inputs (`check=per_pass`); None: nothing was checked."""
    way: str = ""
    """Of a pattern: `register_replacement` where TorchAir replaced it; '' where the pass did."""


def rules_together(runs: Iterable[tuple[RuleFacts, ...]]) -> tuple[RuleFacts, ...]:
    """What each rule did to all graphs of a run: counts added, the largest error; in the order first met."""
    found: dict[str, RuleFacts] = {}
    for rule in (rule for rules in runs for rule in rules):
        known = found.get(rule.rule)
        found[rule.rule] = rule if known is None else _added(known, rule)
    return tuple(found.values())


def _added(one: RuleFacts, other: RuleFacts) -> RuleFacts:
    errors = [error for error in (one.max_abs_err, other.max_abs_err) if error is not None]
    return attrs.evolve(
        one,
        matches=one.matches + other.matches,
        casts=one.casts + other.casts,
        permutes=one.permutes + other.permutes,
        unchecked=one.unchecked + other.unchecked,
        max_abs_err=max(errors, default=None),
    )


@frozen(kw_only=True)
class FoldFacts:
    """What became constants of the graph."""

    parameters: tuple[str, ...]
    """Placeholders of the parameters that were folded."""
    bytes: int
    """Memory of the constants, beside that of the parameters."""


@frozen(kw_only=True)
class MoveFacts:
    """Permutes and casts of one graph before and after those that undo each other were taken out."""

    permutes_before: int
    permutes_after: int
    casts_before: int
    casts_after: int
    bytes_before: int
    bytes_after: int
    """Bytes read and written by permutes, copies and casts; symbols count with their hints."""


@frozen(kw_only=True)
class PassFacts:
    """One run of one pass over one graph."""

    name: str
    """The label in YAML; the pass's own name where the label says nothing else."""
    stage: Literal["pre", "post"]
    matches: int
    nodes_before: int
    nodes_after: int
    seconds: float
    exact: bool = True
    """The results of this graph keep their bits."""
    rules: tuple[RuleFacts, ...] = ()
    moves: MoveFacts | None = None
    folds: FoldFacts | None = None
    why: str = ""
    """What it did, or why it left the graph as it was, where there is more to say than numbers."""
    max_abs_err: float | None = None
    """The largest difference that check=per_pass saw; None where nothing was checked."""
    graph: str | None = None


@frozen(kw_only=True)
class PassRecord(PassFacts):
    """`PassRecord(name="cse", stage="pre", matches=2, nodes_before=9, nodes_after=7, seconds=0.0004, exact=True)`."""

    rtol: float = 0.0
    atol: float = 0.0
    """Where its results are not exact: how far off the contracts of what was applied let them be; both 0 where nothing
    says."""


@frozen(kw_only=True)
class Adaptation:
    """One node and the rule that takes it."""

    graph: str
    rule: str
    kind: str
    op: str
    node: str
    source: str = ""
    """The model's line; '' where torch kept none."""
    before: str
    """The node as text."""
    after: tuple[str, ...] = ()
    """The nodes that take its place; none where it is rejected."""
    rtol: float = 0.0
    atol: float = 0.0
    """The rule's contract; both 0 is bitwise."""
    range_check: bool = False
    rejected: str | None = None
    """Why the node is refused."""


@frozen(kw_only=True)
class DryRun:
    """What the rules would do; nothing was changed, recorded or run."""

    asked: Mapping[str, str]
    """{group: choice} of the experiment."""
    graphs: int = 0
    adaptations: tuple[Adaptation, ...] = ()
    """In the order in which the rules are applied: a node that a rule made may be taken by another one."""
    untouched: tuple[str, ...] = field(factory=tuple)
    """Nodes of an operator that some rule names, for which no rule holds, as text."""
    compiler: str | None = None
    """What the vendor's compiler said of the adapted graph, where it refused it."""

    @property
    def rejections(self) -> tuple[Adaptation, ...]:
        return tuple(one for one in self.adaptations if one.rejected is not None)


MOST_NODES = 10_000
"""Nodes of a table; those that come later in running order are counted and left out."""
MOST_EDGES = 50_000
"""Inputs of all nodes of a table together."""
MOST_CHARACTERS = 200
"""Of a text."""


@frozen(kw_only=True)
class NodeTable:
    """The nodes in running order: parallel tuples, in which a number names a node by its place, or a text of `texts`.

    What only orders (scopes, records, waits) is no node: it is `streams` and `events`. A table has at most MOST_NODES
    nodes, MOST_EDGES inputs and texts of MOST_CHARACTERS, which bounds its JSON: 60 bytes a node as measured.
    """

    names: tuple[str, ...]
    operators: tuple[int, ...]
    """Texts: `aten.mm.default`; `input`, `constant` or `output`."""
    values: tuple[int, ...]
    """Texts: `f32[16, 4]`; '' where nothing is known."""
    sources: tuple[int, ...]
    """Texts: `model.py:12: y = x @ w`, the line of the model; '' where torch kept none."""
    streams: tuple[int, ...]
    """Texts: the stream's name; '' of what runs on none."""
    inputs: tuple[tuple[int, ...], ...]
    """Nodes that each one reads, each once; all come before it."""
    events: tuple[tuple[int, int], ...] = ()
    """(recorder, waiter): nodes on two streams."""
    alive: tuple[int, ...] = ()
    """Bytes of intermediate results alive while each node runs, one node after the other in this order; what the graph
    reads and returns is not counted. Symbols count with their hints."""
    texts: tuple[str, ...] = ("",)
    """Each text once."""
    left_out: int = 0
    """Nodes beyond MOST_NODES."""

    def text(self, column: tuple[int, ...], node: int) -> str:
        """`table.text(table.operators, 3)` is `aten.mm.default`."""
        return self.texts[column[node]]


@frozen(kw_only=True)
class GraphDrawing:
    """One graph."""

    before: NodeTable
    after: NodeTable | None = None
    """None where the passes left the graph as it was."""
