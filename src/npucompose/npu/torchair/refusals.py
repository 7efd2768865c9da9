"""What TorchAir does not take: worked around before it sees a graph, where that can be; else a failure in our words.

A failure is a value: operator, line, TorchAir's own words, what it would take.

# Note [Attention under max-autotune]
On an Ascend 910B torch_npu makes npu_fusion_attention_v3 of scaled_dot_product_attention. TorchAir (torch_npu 2.13.0)
has a converter for npu_fusion_attention alone, and generates none for an operator without a namesake in CANN. Both are
FlashAttentionScore; they differ in the seeds of a dropout, numbers in the first and tensors in the third. Without
dropout the one is taken for the other, which is what the `custom_decompositions` of TorchAir's backend are for. With a
version that has a converter nothing is done.

# Note [Operands that overlap]
TorchAir's in-place pass makes `sub_(x[1:], x[:-1])` of `sub(x[1:], x[:-1])` where x is not used again: like
torch.fx.passes.reinplace, which it follows, it asks for later uses of the memory and not for the other operands of the
call. torch and torch_npu (op-plugin, `check_memory`) both refuse that call, so that a model with torch.diff in it (the
packed sequences of every Hugging Face decoder) cannot be captured. With the second operand copied the pass may act.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from npucompose.errors import CompileError, first_raised, raise_for, traced_line, unknown
from npucompose.graphs.recordable import refused_by_torchair
from npucompose.npu.static_graph.conversions import NUMBERS, OF_FIXED_SIZE, is_scalar, taken_instead
from npucompose.npu.static_graph.records import Failure, Undecided
from npucompose.npu.torchair.config import TorchairMode, torchair_mode
from npucompose.ops.functionalised import ALIASED
from npucompose.results.graphs import Outside, PassRecord
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import CONVERTED_AS, name_of, operators

if TYPE_CHECKING:
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation

SEEDLESS = ("seed", "offset", "dropout_mask")


def convertible() -> dict[Any, Callable[..., Any]]:
    """{the third version: the first}, forward and gradient, as far as torch_npu has them and TorchAir no converter."""
    return {
        operator.default: _as_first(operator.default, getattr(torch.ops.npu, first).default)
        for third, first in (map(_bare, pair) for pair in CONVERTED_AS.items())
        if (operator := getattr(torch.ops.npu, third, None)) is not None
        and not hasattr(operator.default, "_ge_converter")  # on the operators TorchAir hangs its converters
    }


def _bare(name: str) -> str:
    return name.removeprefix("npu::")


def _as_first(third: Any, first: Any) -> Callable[..., Any]:
    places = [argument.name for argument in third._schema.arguments]
    known = {argument.name for argument in first._schema.arguments} - set(SEEDLESS)

    def decomposed(*args: Any, **named: Any) -> Any:
        given = {**dict(zip(places, args, strict=False)), **named}
        if given.get("keep_prob", 1.0) != 1.0 or any(given.get(n) is not None for n in ("actual_seq_qlen", "prefix")):
            return NotImplemented
        results = first(**{name: value for name, value in given.items() if name in known})
        if third is not torch.ops.npu.npu_fusion_attention_v3.default:
            return results
        seeds = [given["query"].new_zeros(1, dtype=torch.int64) for _ in range(2)]
        return (*results[:4], *seeds)

    return decomposed


NAME = "separate_overlaps"


def separate_overlaps(graph_module: fx.GraphModule) -> PassRecord | None:
    """Copy what overlaps; None where nothing does.

    `sub(x[1:], x[:-1])` -> `sub(x[1:], clone(x[:-1]))`, where x is a value of the graph: inputs are not written over.
    """
    begun, before = perf_counter(), len(graph_module.graph.nodes)
    inputs = {_storage(node) for node in graph_module.graph.nodes if node.op == "placeholder"}
    copied = sum(_separated(node, inputs) for node in list(graph_module.graph.nodes))
    if not copied:
        return None
    graph_module.graph.lint()
    graph_module.recompile()
    return PassRecord(
        name=NAME,
        stage="post",
        matches=copied,
        exact=True,
        nodes_before=before,
        nodes_after=len(graph_module.graph.nodes),
        seconds=perf_counter() - begun,
    )


def _separated(node: fx.Node, inputs: set[int | None]) -> int:
    """How many operands of the call were copied."""
    operands = [arg for arg in node.args if isinstance(arg, fx.Node)]
    target: Any = node.target
    if len(operands) < 2 or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return 0
    first, *others = operands
    copied = 0
    for other in dict.fromkeys(others):
        if _storage(first) in inputs or not _overlaps(first, other):
            continue
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(torch.ops.aten.clone.default, (other,))
        copy.meta.update({key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta})
        copy.meta["val"] = torch.ops.aten.clone.default(other.meta["val"])
        node.args = tuple(copy if arg is other else arg for arg in node.args)
        copied += 1
    return copied


def _overlaps(first: fx.Node, other: fx.Node) -> bool:
    """Whether two tensors share memory and are not known to be the same elements: torch's partial overlap."""
    if _storage(first) is None or _storage(first) != _storage(other):
        return False
    a, b = ((*v.size(), *v.stride(), v.storage_offset()) for v in (first.meta["val"], other.meta["val"]))
    return len(a) != len(b) or not statically_known_true(sym_eq(a, b))


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def decompositions(names: Sequence[str], can: TorchairMode) -> dict[Any, Any]:
    """{operator: torch's own decomposition}; `aten.addmm` stands for all its overloads.

    For GE also those of operators for which TorchAir has no converter.
    """
    known = {str(operator): operator for operator in decomposition_table if hasattr(operator, "overloadpacket")}
    found: dict[Any, Any] = convertible() if can.ge else {}
    problems: list[str] = []
    for name in names:
        operators = [op for text, op in known.items() if text == name or text.rpartition(".")[0] == name]
        found.update({operator: decomposition_table[operator] for operator in operators})
        if not operators:
            near = unknown("operator with a decomposition", name, sorted({t.rpartition(".")[0] for t in known}))
            problems.append(f"{near.partition(' Choices:')[0]} @ target.decompose")
    raise_for(problems)
    return found


_OVERLAP = "refer to a single memory location"
_SUPER_KERNEL = re.compile(r"\b(optimize_options|debug_options)\b")
_NO_CONVERTER = (
    "ge_converter is not implemented",
    "ge_converter is not supported",
    "no registered converter",
    "auto-generated converter",
    "No AscendIR",
    "GetRegisteredIrDef",
)
_DEFINITION_UNREAD = "GetRegisteredIrDef"  # from libge_runner.so, which comes with CANN
_DATA_DECIDE = "data-dependent"
"""In torch's sentence about a condition on a size that only the data decide."""
_NODE = re.compile(r"While executing %(\S+) : .*?\[target=([\w.]+)\]")
_WRITTEN = re.compile(r"\[target=torch\.ops\.higher_order\.auto_functionalized\w*\]\(args = \(([\w.]+)")
"""The operator that a node of torch's own runs on copies of what it writes."""


def own_stream(graph_module: fx.GraphModule) -> str | None:
    """The model's line that first switches, records or waits for a stream of its own; None where none does.

    Dynamo writes torch.npu.Stream, Event and stream() as operators of `torch.ops.streams` (torch 2.10 and later).
    """
    graph = getattr(graph_module, "graph", None)
    for node in graph.nodes if graph is not None else ():
        if str(node.target).startswith("streams."):
            return traced_line(node.stack_trace or "") or node.name
    return None


def streams_not_taken(error: BaseException, mode: str, traced: fx.GraphModule | None, graph: str) -> Failure | None:
    """The failure of a mode that cannot take the streams in a model's own code.

    TorchAir 2.13.0 and 2.14.0 turn them into scopes and events in `replace_stream_event_pass`, which the package
    torchair skips where torch.npu has no `fake_record_stream`; stock torch_npu has none.
    """
    line = own_stream(traced) if traced is not None else None
    said = str(first_raised(error))
    understood = "control_deps" in said or (isinstance(error, TypeError) and "unhashable" in said)
    if line is None or not understood:
        return None
    return Failure(
        graph=graph,
        what=f"TorchAir's mode={mode} does not take streams and events of the model's own code, on a device as here",
        source=line,
        reason=_first(said),
        fix="mode=npugraph_ex; or the model without streams, and a plan of them in YAML (passes=stream_plan)",
    )


def failure_of(
    error: BaseException, can: TorchairMode, graph: str = "graph_0", version: str = REFERENCE
) -> Failure | None:
    """The failure behind what TorchAir raised for a graph; None leaves the error as it is. The tables of `version` of
    torch_npu say what it would take."""
    error = first_raised(error)
    text = "\n".join(map(str, error.args)) if len(error.args) > 1 else str(error)  # of several it would be a tuple's
    if _OVERLAP in text and can.without_in_place is not None:
        option, value = can.without_in_place
        # torch.fx.passes.reinplace, which TorchAir's pass follows, looks at later uses of the memory only.
        return Failure(
            graph=graph,
            what=(
                "TorchAir's in-place pass lets an operator write its result over an argument whose memory another "
                "argument of it reads too (x[1:] - x[:-1], for example); the operator refuses that, on a device as "
                "here (op-plugin: its in-place kernels call check_memory)"
            ),
            reason=_first(text),
            fix=f"compiler.{option}={str(value).lower()}  # it leaves the pass out",
        )
    refused = str(error.args[0]) if error.args else ""
    if (argument := _SUPER_KERNEL.search(refused)) and can.super_kernel_options:
        what = f"torch.npu.NPUGraph refuses compiler.{can.super_kernel_options}{argument.group()}"
        return Failure(graph=graph, what=what, reason=refused)
    if ALIASED in text:  # torch itself refuses it, on every target
        return None
    node = _NODE.search(text)
    missing = any(words in text for words in _NO_CONVERTER)
    if node is None or not (missing or can.ge):
        return None
    traceback = re.split(r"\n\n|Traceback \(most recent", text.partition("Original traceback:")[2])[0]
    name = node[2]
    if (written := _WRITTEN.search(text)) and "auto_functionalized" in name:
        name = f"torch.ops.{written[1]}"
    operator = name.removeprefix("torch.ops.")
    verb = "TorchAir has no GE converter for" if missing else "TorchAir's GE converter refuses"
    what, unread = f"{verb} {name}", _DEFINITION_UNREAD in text
    if unread:
        what += ", and generates one only from an operator of CANN's of that name"
        if operators(version).row(name_of(operator)).converter == "genuine":
            what = f"TorchAir's GE converter of {name} asks CANN for the operator, and there is no CANN here"
    return (Undecided if unread else Failure)(
        graph=graph,
        what=what,
        operator=operator,
        node=node[1],
        source=traced_line(traceback),
        reason="" if unread else _first(text),
        fix=taken_instead(operator, version) if missing else OF_FIXED_SIZE if _DATA_DECIDE in text else None,
    )


def not_captured(
    error: BaseException, mode: str, can: TorchairMode, refused: Sequence[Outside], graph: str, version: str = REFERENCE
) -> Failure | None:
    """The failure behind what a capture raised: the first operator of the graph that none can hold, if there is one."""
    known = failure_of(error, can, graph, version)
    if known is not None or not refused:
        return known
    first = refused[0]
    return Failure(
        graph=graph,
        what=f"mode={mode} cannot capture {first.operator}",
        operator=first.operator,
        node=first.node,
        source=_place(first),
        reason=f"{first.reason} ({_first(str(first_raised(error)))})",
        fix=NUMBERS if is_scalar(first.operator) else None,
    )


def _place(outside: Outside) -> str | None:
    """`model.py:3: x.tolist()`, without the folders."""
    where, colon, code = outside.source.partition(": ")
    return f"{where.rpartition('/')[2]}{colon}{code}" or None


def _first(text: str) -> str:
    return next(iter(text.strip().splitlines()), "").strip()


def translating_captures(
    compiled: Callable[..., Any], backend: Backend, made: Sequence[Compilation]
) -> Callable[..., Any]:
    """`compiled`, which captures when it is called; what fails there is reported as what fails while compiling."""
    refused, can = refused_in(made), torchair_mode(backend)

    def called(*args: Any) -> Any:
        try:
            return compiled(*args)
        except RuntimeError as error:
            graph = made[-1].id if made else "graph_0"
            failure = not_captured(error, backend.mode, can, refused, graph, backend.torch_npu)
            if failure is None:
                raise
            if made:
                made[-1].failure = failure
            raise CompileError(failure.words) from error

    return called


@contextmanager
def translate_errors(backend: Backend, traced: fx.GraphModule | None = None) -> Iterator[None]:
    """An operator that TorchAir cannot convert becomes a CompileError that names it and the model's line; so does the
    first of the model's own streams, where the mode takes none.

    The graph keeps the failure, also of an error that is not understood and comes out as it was. So does what one of
    our passes raised, without the traceback that TorchAir puts into its text.
    """
    backend.refusal = None
    known, mode, can, version = len(backend.compilations), backend.mode, torchair_mode(backend), backend.torch_npu
    try:
        yield
    except Exception as error:
        if backend.refusal is not None:
            raise backend.refusal from None
        last = next(iter(backend.compilations[known:][::-1]), None)
        graph = last.id if last is not None else "graph_0"
        failure = streams_not_taken(error, mode, traced, graph) or failure_of(error, can, graph, version)
        if last is not None:
            if failure is None and can.captures:
                failure = not_captured(error, mode, can, refused_in([last]), last.id, version)
            words = f"{type(error).__name__}: {_first(str(first_raised(error)))}"
            last.failure = failure or Failure(graph=last.id, what="TorchAir did not take the graph", reason=words)
        if failure is None:
            raise
        raise CompileError(failure.words) from error


def refused_in(made: Sequence[Compilation]) -> list[Outside]:
    """What stands in these graphs and no recording can hold."""
    return [outside for one in made for outside in refused_by_torchair(one.graph_module.graph)]
