"""The operator table, and which operators of a graph read values that change: rows 2 to 5 of the decision table.

The table says which operators' tiling reads values and where it can sink. Loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from attrs import evolve, frozen

from npucompose.errors import raise_for, unknown
from npucompose.input_safety import yaml_loader
from npucompose.npu.static_graph.facts import FxFacts, GeFacts, Op, SinkingQuestion
from npucompose.npu.static_graph.records import Blame
from npucompose.schema.experiment import Operator
from npucompose.table.modes import modes_that
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose.vendor import devices
from npucompose.vendor.devices import Product

_NAME = re.compile(r"\w+::\w+")
FILE = Path(__file__).with_name("operators.yaml")


@frozen(kw_only=True)
class OperatorTable:
    """The rows of operators.yaml and those that an experiment adds, with the families of socs.yaml."""

    version: int
    products: Mapping[str, Product] = option(factory=dict)
    operators: Mapping[str, Operator] = option(factory=dict)

    def with_rows(self, rows: Mapping[str, Operator]) -> OperatorTable:
        """The table with an experiment's rows, which replace those of the same name; ConfigError for a wrong one."""
        rows = {name.replace(".", "::", 1): row for name, row in rows.items()}
        problems = [
            f"'{name}' @ sinking.operators is no operator's name: write namespace.operator or namespace::operator."
            for name in rows
            if not _NAME.fullmatch(name)
        ]
        for name, row in rows.items():
            for product in row.products or ():
                if product not in self.products:
                    where = f"sinking.operators.{name}.products"
                    problems.append(unknown("product", product, tuple(self.products), where))
        raise_for(problems)
        return evolve(self, operators={**self.operators, **rows}) if rows else self

    def of_ge(self, ge_type: str) -> Operator | None:
        """The first row whose GE operator this is."""
        return next((row for row in self.operators.values() if row.ge == ge_type), None)

    def product(self, name: str | None) -> str | None:
        """The family of a device's name: `product("Ascend910B3")` is "ascend910b"; ConfigError for an unknown name."""
        return devices.SocTable(families=self.products).family(name)

    def sinks(self, row: Operator, family: str | None) -> bool | None:
        """Whether this product computes this operator's tiling on the device; None where that is unknown."""
        if row.sinks is False:
            return False
        if family is None:
            return None
        if row.products is not None and family not in row.products:
            return False
        of_product = self.products[family].sinks
        return False if of_product is False else None if None in (of_product, row.sinks) else True


@cache
def shipped_table() -> OperatorTable:
    """The table of this version."""
    data: Any = yaml.load(FILE.read_text(encoding="utf-8"), Loader=yaml_loader())
    made = structure(OperatorTable, data, "static_graph/operators.yaml")
    return evolve(made, products=devices.table().families)


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


def uses(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> tuple[Use, ...]:
    """In the graph's order; operators that read no value are not among them."""
    return tuple(use for op in graph.ops if (use := _use(op, question, table)) is not None)


def _use(op: Op, question: SinkingQuestion, table: OperatorTable) -> Use | None:
    row = table.operators.get(op.schema)
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


def _sink(row: Operator, question: SinkingQuestion, table: OperatorTable) -> Sink:
    if not question.sink:
        return "switched_off"
    if row.sinks is False:
        return "operator_cannot"
    sinks = table.sinks(row, question.product)
    if sinks is not None:
        return "sinks" if sinks else "product_cannot"
    return "product_unknown" if question.product is None else "unknown"


def geared(graph: FxFacts, question: SinkingQuestion) -> frozenset[str]:
    """Symbols of sizes that gears turn into constants: TorchAir makes every size but the geared ones a constant too."""
    if not question.gears or question.mode not in modes_that("ge"):
        return frozenset()
    return frozenset(symbol for symbol, origin in graph.symbols.items() if origin and ".size()[" in origin)


def shapes_made_of_values(graph: FxFacts, question: SinkingQuestion) -> Iterator[tuple[Op, tuple[str, ...]]]:
    """Operators whose result has an unknown size that no tensor given to it has: a number or the data decide it."""
    given = geared(graph, question).union(*(one.sizes.values() for one in graph.inputs))
    for op in graph.ops:
        made = tuple(s for s in op.unknown_out if s not in op.unknown_in and s not in given)
        if made:
            yield op, made


def dynamic_ops(
    graph: FxFacts, question: SinkingQuestion, table: OperatorTable
) -> tuple[Mapping[str, Blame], Mapping[str, Blame]]:
    """({op: why it is dynamic}, {op: why that is unknown}), by rules 2 to 5, in the graph's order."""
    by_op = {use.op.name: use for use in uses(graph, question, table)}
    known = geared(graph, question)
    dynamic: dict[str, Blame] = {}
    unsure: dict[str, Blame] = {}
    for op in graph.ops:
        use = by_op.get(op.name)
        row = table.operators.get(op.schema)
        if row is not None and row.host_engine:
            dynamic[op.name] = _blame(graph, op, "rule 2", f"{row.ge} runs on the host's engine ({row.source})")
        elif any(symbol not in known for symbol in (*op.unknown_in, *op.unknown_out)):
            dynamic[op.name] = _unknown_shape(graph, op, known)
        elif inner := _inside(op, question, table):
            dynamic[op.name] = _blame(
                graph, op, "rule 4", f"its subgraph {inner.graph} has {inner.node}: {inner.reason}"
            )
        elif use is not None and use.static is not True:
            (dynamic if use.static is False else unsure)[op.name] = _blame(
                graph,
                op,
                "rule 1" if use.sink == "packed" else "rule 5",
                sentence(use, question),
                argument=use.changing[0],
                symbol=next(iter(use.symbols), None),
            )
    return dynamic, unsure


def _inside(op: Op, question: SinkingQuestion, table: OperatorTable) -> Blame | None:
    dynamic = (dynamic_ops(graph, question, table)[0] for graph in op.subgraphs)
    return next((blame for found in dynamic for blame in found.values()), None)


def _unknown_shape(graph: FxFacts, op: Op, known: Collection[str]) -> Blame:
    if op.unbacked:
        reason = f"the size of its result is known only when it has run ({', '.join(op.unbacked)})"
        return _blame(graph, op, "rule 3", reason, symbol=op.unbacked[0])
    made = [s for s in op.unknown_out if s not in op.unknown_in and s not in known]
    symbol = made[0] if made else next(s for s in op.unknown_in if s not in known)
    origin = graph.symbols.get(symbol)
    reason = f"a size of its {'result' if made else 'input'} is {symbol}" + (f", which is {origin}" if origin else "")
    return _blame(graph, op, "rule 3", reason, argument=origin, symbol=symbol)


def fed_slots(ge: GeFacts, table: OperatorTable) -> Iterator[str]:
    """`FusedInferAttentionScore: actual_seq_lengths_kv is fed by Data`, for every operator of the table."""
    for ge_type, fed in ge.inputs.values():
        row = table.of_ge(ge_type)
        for slot in row.ge_slots().values() if row is not None else ():
            if slot in fed:
                yield f"{ge_type}: {slot} is fed by {fed[slot]}"


SENTENCES: Mapping[Sink, str] = {
    "switched_off": "its tiling reads {slots}, which is not a constant, and tiling sink is off",
    "packed": "some of {slots} are not inputs of the graph: TorchAir makes a Pack of them and forces its shape unknown",
    "operator_cannot": "its tiling reads {slots}, which is not a constant, and has no version for the device: {source}",
    "product_cannot": "its tiling reads {slots}, which is not a constant, and {product} cannot compute it on the "
    "device",
    "product_unknown": "its tiling reads {slots}; whether the device can compute it depends on the product: name one",
    "unknown": "it is given {slots}, which changes; whether the device can compute its tiling is unknown: {source}",
    "sinks": "its tiling reads {slots} on the device",
    "constant": "its tiling reads only constants",
}


def sentence(use: Use, question: SinkingQuestion) -> str:
    """One sentence on what becomes of the operator."""
    source = use.row.source if use.row is not None else "the operator table has no row for it"
    slots = " and ".join(use.changing)
    return SENTENCES[use.sink].format(slots=slots, source=source, product=question.product)


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
