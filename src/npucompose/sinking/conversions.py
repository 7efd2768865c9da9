"""Which operators of a graph TorchAir cannot convert, by the tables of the wheel, and what to write instead.

Rule 11 of docs/sinking.md: with one operator that has no GE converter there is no GE graph. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from npucompose.results.sinking import Failure
from npucompose.sinking.facts import FxFacts, Op, SinkingQuestion
from npucompose.sinking.operators import OperatorTable
from npucompose.vendor.converter_conditions import ARCH35, NOT_950, by_place, guards, holds
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
class Doubt:
    """An operator of which it is unknown whether TorchAir converts it."""

    op: Op
    why: str
    """One clause."""


def unconverted(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> Failure | None:
    """The failure of the first operator that TorchAir has no converter for; None where there is none."""
    wheel = operators(question.torch_npu)
    for op in calls(graph):
        what = _refused(op, wheel, question, table)
        if what is not None:
            return Failure(
                graph=graph.id,
                what=f"{what} ({RULE}, {wheel.named})",
                operator=op.overload,
                node=op.name,
                source=op.source,
                reason=_reason(op, wheel, question),
                fix=_fix(op, wheel, question),
                foreseen=True,
            )
    return None


def _reason(op: Op, wheel: WheelOperators, question: SinkingQuestion) -> str:
    held = _raises(op, wheel, question)[0]
    return op.unwritable or (f"it raises if {held}" if held else _row(op, wheel).says)


def _fix(op: Op, wheel: WheelOperators, question: SinkingQuestion) -> str:
    instead = taken_instead(op.overload, wheel.version)
    return f"other arguments; or {instead}" if _raises(op, wheel, question)[0] else instead


def _raises(op: Op, wheel: WheelOperators, question: SinkingQuestion) -> tuple[str, str]:
    """(a condition that holds of this call, one that is undecided), of those under which the converter raises."""
    product = {} if question.product is None else {ARCH35: repr(question.product == "ascend950")}
    refuses = _row(op, wheel).refuses
    known = wheel.given_there(op.overload, op.constants)
    # Another operator's converter takes its arguments in another order.
    in_order = op.parameters if wheel.on_the_device(op.overload) == op.overload else ()
    given = {**by_place(refuses, known, in_order), **product}
    found = {one: holds(one, given, wheel.lists.ge_types) for one in guards(refuses)}
    held = next((one for one in found if found[one]), "")
    return held, next((one for one in found if found[one] is None), "")


def doubts(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> tuple[Doubt, ...]:
    """The operators of which no table says whether they are converted, each kind once."""
    wheel = operators(question.torch_npu)
    found: dict[str, Doubt] = {}
    for op in calls(graph):
        why = _unknown(op, wheel, question, table)
        if why is not None:
            found.setdefault(op.overload, Doubt(op=op, why=why))
    return tuple(found.values())


def calls(graph: FxFacts) -> list[Op]:
    """Every call of an operator in the graph's order, those that give no tensor too."""
    return sorted((*graph.ops, *graph.without_tensors), key=lambda op: op.at)


def _refused(op: Op, wheel: WheelOperators, question: SinkingQuestion, table: OperatorTable) -> str | None:
    """What TorchAir does not do, in one clause; None where it converts the operator, or where that is unknown."""
    if op.empty:
        return None
    if op.higher_order:
        known = f"higher_order::{op.overload}" in wheel.lists.converters
        return None if known else f"TorchAir has no GE converter for {op.overload}"
    missing = None if op.schema in table.operators else _missing(op, _row(op, wheel))
    if missing:
        return missing
    if op.unwritable:
        return f"TorchAir cannot write back what torch.ops.{op.overload} writes"
    if held := _raises(op, wheel, question)[0]:
        where = " on other products than Ascend 950" if held == NOT_950 else ""
        return f"TorchAir's GE converter refuses torch.ops.{op.overload}{where}"
    return None


def _missing(op: Op, row: OperatorRow) -> str | None:
    """Of an operator that no row of the experiment says to be one of CANN's."""
    if row.converter == "raises" or (row.converter == "none" and _of_torch(row)):
        return f"TorchAir has no GE converter for torch.ops.{op.overload}"
    if row.converter == "none" and op.scalar is not None:
        return f"TorchAir has no GE converter for torch.ops.{op.overload}, and makes none with a Scalar ({op.scalar})"
    return None


def _unknown(op: Op, wheel: WheelOperators, question: SinkingQuestion, table: OperatorTable) -> str | None:
    if op.higher_order or op.empty:
        return None
    row = _row(op, wheel)
    if op.schema not in table.operators and row.converter == "unknown":
        return row.says if wheel.knows(row.name) else f"{row.says}; {MADE}"
    if op.schema not in table.operators and row.converter == "none" and not _of_torch(row):
        return f"{wheel.named} has no converter of its own for it; {MADE}"
    if asked := _raises(op, wheel, question)[1]:
        named = "" if question.product or ARCH35 not in asked else ": no product is named (target.soc)"
        return f"its GE converter raises if {asked}, and that is not known{named}"
    return None


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
