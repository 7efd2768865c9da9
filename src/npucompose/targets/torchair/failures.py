"""What TorchAir says when it does not take a graph, as a value: operator, line, its own words, what it would take."""

from __future__ import annotations

import re
from collections.abc import Iterable

from npucompose.errors import traced_line
from npucompose.schema.leaf import GE
from npucompose.schema.partition import Outside
from npucompose.schema.sinking import Failure

_OVERLAP = "refer to a single memory location"
_IN_PLACE = {
    "npugraph_ex": "compiler.npugraph_ex.inplace_pass=false",
    "reduce-overhead": "compiler.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true",
}
_NO_CONVERTER = (
    "ge_converter is not implemented",
    "ge_converter is not supported",
    "no registered converter",
    "auto-generated converter",
)
_NODE = re.compile(r"While executing %(\S+) : .*?\[target=([\w.]+)\]")
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


def failure_of(error: BaseException, mode: str, graph: str = "graph_0") -> Failure | None:
    """The failure behind what TorchAir raised for a graph; None leaves the error as it is."""
    text = str(error)
    if _OVERLAP in text and mode in _IN_PLACE:
        # torch.fx.passes.reinplace, which TorchAir's pass follows, looks at later uses of the memory only.
        return Failure(
            graph=graph,
            what=(
                "TorchAir's in-place pass lets an operator write its result over an argument whose memory another "
                "argument of it reads too (x[1:] - x[:-1], for example); the operator refuses that, on a device as here"
            ),
            reason=_first(text),
            fix=f"{_IN_PLACE[mode]}  # it leaves the pass out",
        )
    node = _NODE.search(text)
    missing = any(words in text for words in _NO_CONVERTER)
    if node is None or not (missing or mode == GE):
        return None
    traceback = re.split(r"\n\n|Traceback \(most recent", text.partition("Original traceback:")[2])[0]
    operator = node[2].removeprefix("torch.ops.")
    verb = "TorchAir has no GE converter for" if missing else "TorchAir's GE converter refuses"
    return Failure(
        graph=graph,
        what=f"{verb} {node[2]}",
        operator=operator,
        node=node[1],
        source=traced_line(traceback),
        reason=_first(text),
        fix=taken_instead(operator) if missing else None,
    )


def not_captured(error: BaseException, mode: str, refused: Iterable[Outside], graph: str) -> Failure | None:
    """The failure behind what a capture raised: the first operator of the graph that none can hold, if there is one."""
    known = failure_of(error, mode, graph)
    first = next(iter(refused), None)
    if known is not None or first is None:
        return known
    return Failure(
        graph=graph,
        what=f"mode={mode} cannot capture {first.operator}",
        operator=first.operator,
        node=first.node,
        source=first.source or None,
        reason=f"{first.reason} ({_first(str(error))})",
        fix=NUMBERS if _is_scalar(first.operator) else None,
    )


def not_understood(error: BaseException, graph: str) -> Failure:
    """The failure behind an error that names no operator."""
    return Failure(
        graph=graph, what="TorchAir did not take the graph", reason=f"{type(error).__name__}: {_first(str(error))}"
    )


def taken_instead(operator: str) -> str:
    """What TorchAir converts in place of `aten.softplus.default`, as far as that is known."""
    if _is_scalar(operator):
        return NUMBERS
    if operator in ADAPTED:
        return f"adapt=ascend  # its rules make operators with a converter of {operator.rpartition('.')[0]}"
    name = operator.rpartition(".")[0]
    ways = "mode=npugraph_ex, which captures operators and converts none"
    return f"target.decompose=[{name}]  # torch takes it apart; or {ways}" if _decomposes(operator) else ways


def _is_scalar(operator: str) -> bool:
    return any(operator in (full, full.removesuffix(".default")) for full in SCALAR)


def _decomposes(operator: str) -> bool:
    from torch._decomp import decomposition_table

    return any(str(known) == operator for known in decomposition_table)


def _first(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
