"""Which operators of a graph TorchAir cannot convert, by the tables of the wheel, and what to write instead.

Rule 11 of docs/sinking.md: with one operator that has no GE converter there is no GE graph. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from npucompose.npu.static_graph.facts import FxFacts, Op, SinkingQuestion
from npucompose.npu.static_graph.operators import OperatorTable
from npucompose.npu.static_graph.records import Failure
from npucompose.vendor.converter_conditions import (
    ARCH35,
    NOT_950,
    asks_for_the_product,
    by_place,
    guards,
    holds,
)
from npucompose.vendor.wheel_operators import CONVERTED_AS, OperatorRow, WheelOperators, name_of, operators

RULE = "rule 11"
ADAPTED = frozenset(
    f"aten.{name}"
    for name in (
        "all.dim", "amax.default", "amin.default", "clamp_max.default", "count_nonzero.dim_IntList", "dot.default",
        "erfc.default", "exp2.default", "frac.default", "hardshrink.default", "index_copy.default", "index_put.default",
        "isnan.default", "isneginf.default", "isposinf.default", "logical_xor.default", "mv.default",
        "silu_backward.default", "softplus.default", "trunc.default",
    )
)  # fmt: skip
"""Operators without a converter that adapt=ascend replaces; a test compares it with that file."""
SCALAR = ("aten._local_scalar_dense.default", "aten.item.default")
ON_DEVICE = "torchair.ops.npu_fused_infer_attention_score, which takes them as a tensor"
NUMBERS = (
    "numbers that the caller gives: a list[int] as an argument of forward, which shapes=dynamic makes symbols; "
    f"for attention also {ON_DEVICE}"
)
OF_FIXED_SIZE = "an operator whose result has a size that no data decide (torch.where, a mask, a top-k)"
OUTSIDE = "compute it before or behind the compiled part: no graph on the device holds it"
OTHER = "another operator: npucompose list operators says which are converted"
MADE = "TorchAir makes a converter where CANN has an operator of that name, which a row of sinking.operators says"


@frozen(kw_only=True)
class Judgement:
    """What TorchAir makes of one call: it refuses it, that is unknown, or, without any words, it converts it."""

    op: Op
    refused: str = ""
    """What TorchAir does not do, in one clause."""
    reason: str = ""
    """Of a refusal."""
    fix: str = ""
    """What to write instead of a call that is refused."""
    why: str = ""
    """Why it is unknown whether the call is converted, in one clause."""


def unconverted(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> Failure | None:
    """The failure of the first operator that TorchAir has no converter for; None where there is none."""
    for one in (judged(op, question, table) for op in calls(graph)):
        if one.refused:
            return Failure(
                graph=graph.id,
                what=f"{one.refused} ({RULE}, {operators(question.torch_npu).named})",
                operator=one.op.overload,
                node=one.op.name,
                source=one.op.source,
                reason=one.reason,
                fix=one.fix,
                foreseen=True,
            )
    return None


def doubts(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> tuple[Judgement, ...]:
    """The operators of which no table says whether they are converted, each kind once."""
    found: dict[str, Judgement] = {}
    for one in (judged(op, question, table) for op in calls(graph)):
        if one.why:
            found.setdefault(one.op.overload, one)
    return tuple(found.values())


def calls(graph: FxFacts) -> list[Op]:
    """Every call of an operator in the graph's order, those that give no tensor too."""
    return sorted((*graph.ops, *graph.without_tensors), key=lambda op: op.at)


def judged(op: Op, question: SinkingQuestion, table: OperatorTable) -> Judgement:
    """The judgement of a call, by the wheel's tables and the experiment's rows, which say what CANN has."""
    wheel = operators(question.torch_npu)
    row = _row(op, wheel)
    if op.empty:
        return Judgement(op=op)
    if op.higher_order:
        known = f"higher_order::{op.overload}" in wheel.lists.converters
        return Judgement(op=op) if known else _refusal(op, wheel, f"TorchAir has no GE converter for {op.overload}")
    own = op.schema in table.operators
    missing = None if own else _missing(op, row)
    if missing:
        return _refusal(op, wheel, missing, op.unwritable or row.says)
    if op.unwritable:
        return _refusal(op, wheel, f"TorchAir cannot write back what torch.ops.{op.overload} writes", op.unwritable)
    why = "" if own else _unlisted(row, wheel)
    return Judgement(op=op, why=why) if why else _by_arguments(op, row, wheel, question)


def _refusal(op: Op, wheel: WheelOperators, what: str, reason: str = "", other: str = "") -> Judgement:
    """`other`: what may be written besides another operator."""
    return Judgement(op=op, refused=what, reason=reason, fix=other + taken_instead(op.overload, wheel.version))


def _by_arguments(op: Op, row: OperatorRow, wheel: WheelOperators, question: SinkingQuestion) -> Judgement:
    """By the conditions under which the converter raises: one that holds, else one that is undecided."""
    product = {} if question.product is None else {ARCH35: repr(question.product == "ascend950")}
    known = wheel.given_there(op.overload, op.constants)
    # Another operator's converter takes its arguments in another order.
    in_order = op.parameters if wheel.on_the_device(op.overload) == op.overload else ()
    given, types = {**by_place(row.refuses, known, in_order), **product}, wheel.lists.ge_types
    found = {one: holds(one, given, types) for one in guards(row.refuses)}
    held, asked = (next((one for one in found if found[one] is said), "") for said in (True, None))
    if held:
        where = " on other products than Ascend 950" if held == NOT_950 else ""
        refused = f"TorchAir's GE converter refuses torch.ops.{op.overload}{where}"
        return _refusal(op, wheel, refused, f"it raises if {held}", "other arguments; or ")
    if not asked:
        return Judgement(op=op)
    named = ": no product is named (target.soc)" if asks_for_the_product(asked, given, types) else ""
    return Judgement(op=op, why=f"its GE converter raises if {asked}, and that is not known{named}")


def _missing(op: Op, row: OperatorRow) -> str | None:
    """Of an operator that no row of the experiment says to be one of CANN's."""
    if row.converter == "raises" or (row.converter == "none" and _of_torch(row)):
        return f"TorchAir has no GE converter for torch.ops.{op.overload}"
    if row.converter == "none" and op.scalar is not None:
        return f"TorchAir has no GE converter for torch.ops.{op.overload}, and makes none with a Scalar ({op.scalar})"
    return None


def _unlisted(row: OperatorRow, wheel: WheelOperators) -> str:
    """Why no list says whether there is a converter; empty where one does."""
    if row.converter == "unknown":
        return row.says if wheel.knows(row.name) else f"{row.says}; {MADE}"
    if row.converter == "none" and not _of_torch(row):
        return f"{wheel.named} has no converter of its own for it; {MADE}"
    return ""


def _of_torch(row: OperatorRow) -> bool:
    return row.name.startswith(("aten::", "prims::", "prim::"))


def _row(op: Op, wheel: WheelOperators) -> OperatorRow:
    row = wheel.row(wheel.on_the_device(op.overload))
    return wheel.row(CONVERTED_AS[row.name]) if row.converter == "none" and row.name in CONVERTED_AS else row


def taken_instead(operator: str, version: str) -> str:
    """What a device takes in place of `aten.softplus.default`, as far as the tables of that version know it."""
    if is_scalar(operator):
        return NUMBERS
    if name_of(operator) in operators(version).torch.decided_by_data:
        return OF_FIXED_SIZE
    return "; or ".join(_ways(operator, operators(version)))


def _ways(operator: str, wheel: WheelOperators) -> Iterator[str]:
    name, row = operator.rpartition(".")[0], wheel.row(operator)
    if operator in ADAPTED:
        yield f"adapt=ascend  # its rules make operators with a converter of {name}"
        return
    parts = wheel.torch.decompositions.get(name_of(operator), ())
    if parts and all(wheel.converts(part) for part in parts):
        yield f"target.decompose=[{name}]  # torch takes it apart"
        if not row.runs:
            return
    if row.runs:
        yield "mode=npugraph_ex, which captures operators and converts none"
    else:
        yield OTHER if row.kernel == "unknown" else OUTSIDE


def is_scalar(operator: str) -> bool:
    """Whether it turns data into a number; the name may lack `.default`."""
    return any(operator in (full, full.removesuffix(".default")) for full in SCALAR)
