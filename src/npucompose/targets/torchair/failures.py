"""What TorchAir says when it does not take a graph, as a value: operator, line, its own words, what it would take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from npucompose.errors import traced_line
from npucompose.results.graphs import Outside
from npucompose.results.sinking import Failure
from npucompose.sinking.operators import NUMBERS, is_scalar, taken_instead
from npucompose.table.modes import GE

if TYPE_CHECKING:
    from torch import fx

_OVERLAP = "refer to a single memory location"
_IN_PLACE = {
    "npugraph_ex": "compiler.npugraph_ex.inplace_pass=false",
    "reduce-overhead": "compiler.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true",
}
_SUPER_KERNEL = re.compile(r"\b(optimize_options|debug_options)\b")
_SUPER_KERNEL_OPTIONS = {
    "npugraph_ex": "compiler.npugraph_ex.super_kernel_",
    "reduce-overhead": "compiler.experimental_config.aclgraph._super_kernel_",
}
_NO_CONVERTER = (
    "ge_converter is not implemented",
    "ge_converter is not supported",
    "no registered converter",
    "auto-generated converter",
)
_NODE = re.compile(r"While executing %(\S+) : .*?\[target=([\w.]+)\]")


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
    understood = "control_deps" in str(error) or (isinstance(error, TypeError) and "unhashable" in str(error))
    if line is None or not understood:
        return None
    return Failure(
        graph=graph,
        what=f"TorchAir's mode={mode} does not take streams and events of the model's own code, on a device as here",
        source=line,
        reason=_first(str(error)),
        fix="mode=npugraph_ex; or the model without streams, and a plan of them in YAML (passes=stream_plan)",
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
                "argument of it reads too (x[1:] - x[:-1], for example); the operator refuses that, on a device as "
                "here (op-plugin: its in-place kernels call check_memory)"
            ),
            reason=_first(text),
            fix=f"{_IN_PLACE[mode]}  # it leaves the pass out",
        )
    refused = str(error.args[0]) if error.args else ""
    if (option := _SUPER_KERNEL.search(refused)) and mode in _SUPER_KERNEL_OPTIONS:
        what = f"torch.npu.NPUGraph refuses {_SUPER_KERNEL_OPTIONS[mode]}{option.group()}"
        return Failure(graph=graph, what=what, reason=refused)
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
    if known is not None:
        return known
    first = next(iter(refused), None)
    if first is None:
        return None
    return Failure(
        graph=graph,
        what=f"mode={mode} cannot capture {first.operator}",
        operator=first.operator,
        node=first.node,
        source=_place(first),
        reason=f"{first.reason} ({_first(str(error))})",
        fix=NUMBERS if is_scalar(first.operator) else None,
    )


def not_understood(error: BaseException, graph: str) -> Failure:
    """The failure behind an error that names no operator."""
    return Failure(
        graph=graph, what="TorchAir did not take the graph", reason=f"{type(error).__name__}: {_first(str(error))}"
    )


def _place(outside: Outside) -> str | None:
    """`model.py:3: x.tolist()`, without the folders."""
    where, colon, code = outside.source.partition(": ")
    return f"{where.rpartition('/')[2]}{colon}{code}" or None


def _first(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
