"""Graphs that were never compiled, and what is asked about them."""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve, frozen

from npucompose.npu.static_graph.facts import FxFacts, GeFacts, Input, Op, OpArgument, SinkingQuestion
from npucompose.npu.static_graph.operators import OperatorTable, Product, shipped_table
from npucompose.npu.static_graph.records import SinkingFacts
from npucompose.schema.experiment import Operator
from npucompose.vendor.wheel_operators import operators, overload_of

TABLE = shipped_table()
QUESTION = SinkingQuestion(mode="max-autotune", target="cpu", dynamic=True, sink=True, product="ascend910b")
GE = GeFacts(name="g", data={"x": (4, 8)}, inputs={"x": ("Data", {}), "Add": ("Add", {"x1": "Data"})})

SOME = "tensor(torch.float16, [4, 8])"
UNCONVERTED = ("nonzero", "_local_scalar_dense")
SMALL = OperatorTable(
    version=1,
    products={
        "old": Product(title="Old", names=("old*",), sinks=False, source="its manual"),
        "new": Product(title="New", names=("new?", "a9"), sinks=True, source="its manual"),
        "newer": Product(title="Newer", names=("newer*",), sinks=True, source="its manual"),
        "next": Product(title="Next", names=("next",), sinks=None, source="no manual yet"),
    },
    operators={
        "my::sinks": Operator(ge="Sinks", slots=("lens", "kv/lens_kv"), sinks=True, source="row sinks"),
        "my::sinks_on_new": Operator(
            ge="SinksOnNew", slots=("lens",), sinks=True, products=("new",), source="row sinks_on_new"
        ),
        "my::cannot": Operator(ge="Cannot", slots=("lens", "more"), sinks=False, source="row cannot"),
        "my::untold": Operator(ge="Untold", slots=("lens",), sinks=None, source="row untold"),
        "my::host": Operator(ge="Host", slots=("lens",), host_engine=True, source="row host"),
        "aten::in_table": Operator(ge="InTable", slots=("lens",), sinks=True, source="row in_table"),
    },
)
"""A table of few rows, one of each kind."""


def op(name: str, *reads: str, **more: Any) -> Op:
    """`op("relu", "mm_3")`: aten.relu, which reads the node mm_3; a name that no converter has stands for aten.mm."""
    known = name in UNCONVERTED or operators(QUESTION.torch_npu).converts(f"aten::{name}")
    schema = f"aten::{name if known else 'mm'}"
    more.setdefault("constants", dict.fromkeys(("self", "mat2"), SOME))
    return Op(name=name, overload=overload_of(schema), schema=schema, reads=reads, **more)


def own(kind: str, name: str, *reads: str, **slots: str | tuple[str, ...]) -> Op:
    """`own("sinks", "a", lens=("s0",), kv="constant")`: my::sinks, called `a`, with a symbol and a constant."""
    arguments = {
        slot: OpArgument(kind="symbols", symbols=given) if isinstance(given, tuple) else OpArgument(kind=given)  # type: ignore
        for slot, given in slots.items()
    }
    return Op(
        name=name, overload=f"my.{kind}.default", schema=f"my::{kind}", reads=reads, arguments=arguments,
        source=f"model.py:{len(name)} in forward",
    )  # fmt: skip


def graph(*ops: Op, **more: Any) -> FxFacts:
    return FxFacts(**{"id": "graph_0", "ops": ops, **more})


def tensor(name: str, argument: str | None, *shape: int | str) -> Input:
    """`tensor("arg0_1", "key", "s0", 8)`: dimension 0 is a symbol."""
    sizes = {at: size for at, size in enumerate(shape) if isinstance(size, str)}
    return Input(name=name, argument=argument, shape=tuple(map(str, shape)), sizes=sizes)


def number(name: str, argument: str | None, symbol: str) -> Input:
    return Input(name=name, argument=argument, symbol=symbol)


def chain(length: int, *, dynamic_at: int) -> FxFacts:
    ops = [op(f"mm_{n}", *([f"mm_{n - 1}"] if n else [])) for n in range(length)]
    ops[dynamic_at] = evolve(ops[dynamic_at], unknown_out=("u0",), unbacked=("u0",))
    return graph(*ops, symbols={"u0": None})


@frozen(kw_only=True)
class Asked:
    """What is given to `diagnose`."""

    question: SinkingQuestion
    graphs: tuple[FxFacts, ...]
    ge: tuple[GeFacts, ...] = ()


def about(*graphs: FxFacts, ge: tuple[GeFacts, ...] = (), **question: Any) -> Asked:
    """`about(graph(…), sink=False)`: on the product `new`, in max-autotune with sink and symbols but for that."""
    asked = evolve(QUESTION, product="new", arguments=("x", "key"))
    return Asked(question=evolve(asked, **question), graphs=graphs, ge=ge)


def plain(value: object) -> object:
    """A value of attrs as YAML has it: without fields that say nothing, tuples as lists."""
    if hasattr(value, "__attrs_attrs__"):
        value = asdict(value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        told = {key: plain(inner) for key, inner in value.items()}
        return {key: inner for key, inner in told.items() if inner not in (None, [], {})}
    return [plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def told(facts: SinkingFacts) -> str:
    """All that the facts say but for the titles of the steps, a line for each thing."""
    lines = [f"path {facts.path}, product {facts.product}"]
    for name, verdict in facts.verdicts().items():
        lines += [f"{name}: {verdict.value} ({verdict.certainty})", *(f"    {line}" for line in verdict.evidence)]
    for blame in facts.blame:
        said = {name: value for name, value in asdict(blame).items() if value is not None}
        more = [f"{name}={said[name]}" for name in said if name not in ("node", "operator", "reason")]
        lines.append(f"blame {blame.node} ({blame.operator}) {', '.join(more)}")
        lines.append(f"    {blame.reason}")
    for step in facts.steps:
        lines += [f"{step.id} {step.status}", *(f"    {line}" for line in step.evidence)]
        lines += [f"    fix: {step.fix}"] if step.fix is not None else []
    return "\n".join(lines) + "\n"
