"""Which operators read values that change, and what that makes of them: rows 2 to 5 of the decision table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from attrs import frozen

from npucompose.results.sinking import Blame
from npucompose.schema.experiment import Operator
from npucompose.sinking.facts import FxFacts, Op, Question
from npucompose.sinking.table import OperatorTable

Sink = Literal[
    "constant", "sinks", "packed", "switched_off", "operator_cannot", "product_cannot", "product_unknown", "unknown"
]  # fmt: skip
TORCH_OWN = ("aten", "prims", "prim", "air", "npugraph_ex", "higher_order", "_c10d_functional")
"""Namespaces whose operators take numbers as attributes, or as inputs that tiling does not read."""


@frozen(kw_only=True)
class Use:
    """An operator whose tiling reads values, or may do so: `Use(op=…, row=…, changing=("actual_seq_lengths",), …)`."""

    op: Op
    row: Operator | None
    """None: the table does not know the operator, and it is given numbers that change."""
    changing: tuple[str, ...]
    """Slots that do not hold a constant."""
    symbols: tuple[str, ...]
    sink: Sink

    @property
    def static(self) -> bool | None:
        """Whether GE can keep the operator in a static part; None where nobody can tell."""
        if self.sink in ("constant", "sinks"):
            return True
        return None if self.sink in ("product_unknown", "unknown") else False


def uses(graph: FxFacts, question: Question, table: OperatorTable) -> tuple[Use, ...]:
    """In the graph's order; operators that read no value are not among them."""
    found = (_use(op, question, table) for op in graph.ops)
    return tuple(use for use in found if use is not None)


def _use(op: Op, question: Question, table: OperatorTable) -> Use | None:
    row = table.row(op.schema)
    if row is None:
        changing = tuple(name for name, a in op.arguments.items() if a.kind == "symbols")
        foreign = op.schema.partition("::")[0] not in TORCH_OWN
        if not (foreign and changing) or op.unknown_out:
            return None
        return Use(op=op, row=None, changing=changing, symbols=_symbols(op, changing), sink="unknown")
    given = {slot: op.arguments[slot] for slot in row.ge_slots() if slot in op.arguments}
    given = {slot: argument for slot, argument in given.items() if argument.kind != "nothing"}
    if not given:
        return None
    changing = tuple(slot for slot, argument in given.items() if argument.kind != "constant")
    packed = any(given[slot].packed for slot in changing)
    sink = "packed" if packed else _sink(row, question, table) if changing else "constant"
    return Use(op=op, row=row, changing=changing, symbols=_symbols(op, changing), sink=sink)


def _symbols(op: Op, slots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(symbol for slot in slots for symbol in op.arguments[slot].symbols))


def _sink(row: Operator, question: Question, table: OperatorTable) -> Sink:
    if not question.sink:
        return "switched_off"
    if row.sinks is False:
        return "operator_cannot"
    sinks = table.sinks(row, question.product)
    if sinks is not None:
        return "sinks" if sinks else "product_cannot"
    return "product_unknown" if question.product is None else "unknown"


def geared(graph: FxFacts, question: Question) -> frozenset[str]:
    """Symbols of sizes that gears turn into constants: TorchAir makes every size but the geared ones a constant too."""
    if not question.gears or question.mode != "max-autotune":
        return frozenset()
    return frozenset(symbol for symbol, origin in graph.symbols.items() if origin and ".size()[" in origin)


def shapes_made_of_values(graph: FxFacts, question: Question) -> Iterator[tuple[Op, tuple[str, ...]]]:
    """Operators whose result has an unknown size that no tensor given to it has: a number or the data decide it."""
    known = geared(graph, question)
    for op in graph.ops:
        made = tuple(s for s in op.unknown_out if s not in op.unknown_in and s not in known)
        sizes = {s for one in graph.inputs for s in one.sizes.values()}
        made = tuple(s for s in made if s not in sizes)
        if made:
            yield op, made


def dynamic_ops(
    graph: FxFacts, question: Question, table: OperatorTable
) -> tuple[Mapping[str, Blame], Mapping[str, Blame]]:
    """({op: why it is dynamic}, {op: why nobody can tell}), by rows 2 to 5, in the graph's order."""
    by_op = {use.op.name: use for use in uses(graph, question, table)}
    known = geared(graph, question)
    dynamic: dict[str, Blame] = {}
    unsure: dict[str, Blame] = {}
    for op in graph.ops:
        use = by_op.get(op.name)
        row = table.row(op.schema)
        if row is not None and row.host_engine:
            dynamic[op.name] = _blame(graph, op, "row 2", f"{row.ge} runs on the host's engine ({row.source})")
        elif any(symbol not in known for symbol in (*op.unknown_in, *op.unknown_out)):
            dynamic[op.name] = _unknown_shape(graph, op, known)
        elif inner := _inside(op, question, table):
            dynamic[op.name] = _blame(
                graph, op, "row 4", f"its subgraph {inner.graph} has {inner.node}: {inner.reason}"
            )
        elif use is not None and use.static is not True:
            (dynamic if use.static is False else unsure)[op.name] = _values(graph, use, question)
    return dynamic, unsure


def _inside(op: Op, question: Question, table: OperatorTable) -> Blame | None:
    for graph in op.subgraphs:
        dynamic, _ = dynamic_ops(graph, question, table)
        if dynamic:
            return next(iter(dynamic.values()))
    return None


def _unknown_shape(graph: FxFacts, op: Op, known: Collection[str]) -> Blame:
    if op.unbacked:
        reason = f"the size of its result is known only when it has run ({', '.join(op.unbacked)})"
        return _blame(graph, op, "row 3", reason, symbol=op.unbacked[0])
    made = [s for s in op.unknown_out if s not in op.unknown_in and s not in known]
    symbol = made[0] if made else next(s for s in op.unknown_in if s not in known)
    origin = graph.symbols.get(symbol)
    reason = f"a size of its {'result' if made else 'input'} is {symbol}" + (f", which is {origin}" if origin else "")
    return _blame(graph, op, "row 3", reason, argument=origin, symbol=symbol)


SENTENCES: Mapping[Sink, str] = {
    "switched_off": "its tiling reads {slots}, which is no constant, and tiling sink is off",
    "packed": "some of {slots} are no inputs of the graph: TorchAir makes a Pack of them and forces its shape unknown",
    "operator_cannot": "its tiling reads {slots}, which is no constant, and has no tiling for the device: {source}",
    "product_cannot": "its tiling reads {slots}, which is no constant, and {product} computes no tiling on the device",
    "product_unknown": "its tiling reads {slots}, and whether it sinks depends on the product, which is not named",
    "unknown": "it is given {slots}, which changes, and nobody knows whether its tiling sinks: {source}",
    "sinks": "its tiling reads {slots} on the device",
    "constant": "what its tiling reads is constant",
}


def sentence(use: Use, question: Question) -> str:
    """One sentence on what becomes of the operator."""
    source = use.row.source if use.row is not None else "the operator table has no row for it"
    slots = " and ".join(use.changing)
    return SENTENCES[use.sink].format(slots=slots, source=source, product=question.product)


def _values(graph: FxFacts, use: Use, question: Question) -> Blame:
    symbol = use.symbols[0] if use.symbols else None
    rule = "row 1" if use.sink == "packed" else "row 5"
    return _blame(graph, use.op, rule, sentence(use, question), argument=use.changing[0], symbol=symbol)


def _blame(
    graph: FxFacts, op: Op, rule: str, reason: str, argument: str | None = None, symbol: str | None = None
) -> Blame:
    return Blame(
        node=op.name,
        operator=op.overload,
        reason=reason,
        source=op.source,
        graph=graph.id,
        argument=argument,
        symbol=symbol,
        rule=rule,
    )
