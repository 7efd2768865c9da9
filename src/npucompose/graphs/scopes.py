"""Reading stream scopes (scope_enter/scope_exit, record, wait) off an FX graph, whatever package defined the operators.

TorchAir's operators live in `torch.ops.air`, those of the npugraph_ex package in `torch.ops.npugraph_ex`; the names
and the arguments are the same, so a node is recognised by name and the operators need not be defined to read others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Literal, TypeVar

import torch
from attrs import frozen
from torch import fx

from npucompose.schema.streams import DEFAULT_STREAM, Cores

T = TypeVar("T")
NAMESPACES = ("air", "npugraph_ex")
LABEL, PRIORITY = "_user_stream_label", "_user_stream_priority"
CORES = ("_op_aicore_num", "_op_vectorcore_num")
"""TorchAir reads the numbers by their place: a scope has these two attributes and no other."""
STREAM_ID = "_user_stream_id"
Control = Literal["scope_enter", "scope_exit", "record", "wait", "use"]
_OF_STREAMS: Mapping[str, Control] = {
    "scope_enter": "scope_enter", "scope_exit": "scope_exit", "record": "record", "wait": "wait",
    "tagged_event_record": "record", "tagged_event_record_on_stream": "record", "tagged_event_wait": "wait",
    "tagged_event_wait_on_stream": "wait", "record_tagged_stream": "use", "record_tagged_on_stream": "use",
}  # fmt: skip
_NAMES: Mapping[str, Control] = {f"{space}::{name}": kind for space in NAMESPACES for name, kind in _OF_STREAMS.items()}


def control(node: fx.Node) -> Control | None:
    """What an operator that computes nothing does to streams, or None: `air.record.default` is a "record".

    A "use" keeps memory for a stream. Tagged ones are what TorchAir makes of torch.npu's own events.
    """
    return _control(node.target) if isinstance(node.target, torch._ops.OpOverload) else None


@cache
def _control(target: torch._ops.OpOverload) -> Control | None:
    return _NAMES.get(target.name().partition(".")[0])


def tag_of(node: fx.Node) -> str | None:
    """The name of the event that a tagged record or wait is of; the others are of a node."""
    tag = node.args[0] if node.args else None
    return tag if isinstance(tag, str) and control(node) in ("record", "wait") else None


def tagged_streams(graph: fx.Graph) -> dict[fx.Node, str]:
    """{tagged record or wait: the stream that it names by its number}; 0 is the default stream."""
    enters = [Scope.from_node(node) for node in graph.nodes if control(node) == "scope_enter"]
    labels = {scope.stream_id: scope.stream for scope in enters if scope.stream_id and scope.stream}
    named = ((node, str(node.args[1])) for node in graph.nodes if tag_of(node) and "on_stream" in str(node.target))
    return {node: DEFAULT_STREAM if number == "0" else labels.get(number, number) for node, number in named}


def is_planned(graph: fx.Graph) -> bool:
    """Whether a stream scope, a record or a wait stands in the graph already."""
    return any(control(node) is not None for node in graph.nodes)


def orders_streams(graph: fx.Graph) -> bool:
    """Whether a stream scope, a record or a wait stands in the graph; scopes that say something else do not count."""
    return any(
        control(node) in ("record", "wait")
        or (control(node) == "scope_enter" and Scope.from_node(node).stream is not None)
        for node in graph.nodes
    )


@frozen(kw_only=True)
class Scope:
    """What scope_enter was given: `Scope(keys=("_user_stream_label",), values=("stream1",))`."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def from_node(cls, enter: fx.Node) -> Scope:
        keys, values = enter.args[0], enter.args[1]
        assert isinstance(keys, Sequence)
        assert isinstance(values, Sequence)
        return cls(keys=tuple(str(key) for key in keys), values=tuple(str(value) for value in values))

    @property
    def stream(self) -> str | None:
        return self._value(LABEL)

    @property
    def stream_id(self) -> str | None:
        """The number of a stream of the model's own."""
        return self._value(STREAM_ID)

    @property
    def priority(self) -> int:
        return int(self._value(PRIORITY) or 0)

    @property
    def cores(self) -> Cores | None:
        aicore, vectorcore = (self._value(key) for key in CORES)
        return None if aicore is None or vectorcore is None else Cores(aicore=int(aicore), vectorcore=int(vectorcore))

    def _value(self, key: str) -> str | None:
        return dict(zip(self.keys, self.values, strict=False)).get(key)


def stream_labels(graph: fx.Graph) -> dict[fx.Node, str]:
    """{node: stream} of the nodes inside a stream scope; the innermost label counts, as in GE's attributes."""
    return _innermost(graph, lambda scope: scope.stream)


def _innermost(graph: fx.Graph, of: Callable[[Scope], T | None]) -> dict[fx.Node, T]:
    """{node: what the innermost scope around it says, of those that say something}."""
    found: dict[fx.Node, T] = {}
    stack: list[T | None] = []
    for node in graph.nodes:
        kind = control(node)
        if kind == "scope_enter":
            stack.append(of(Scope.from_node(node)) or (stack[-1] if stack else None))
        elif kind == "scope_exit" and stack:
            stack.pop()
        elif stack and stack[-1] is not None:
            found[node] = stack[-1]
    return found


def core_scope(cores: Cores) -> tuple[list[str], list[str]]:
    """Keys and values of the scope that limits cores."""
    return list(CORES), [str(cores.aicore), str(cores.vectorcore)]


def core_limits(graph: fx.Graph) -> dict[fx.Node, Cores]:
    """{node: limit} of the nodes inside a scope that limits cores; the innermost one counts."""
    return _innermost(graph, lambda scope: scope.cores)


def priorities(graph: fx.Graph) -> dict[str, int]:
    """{stream: priority} of the scopes that name one other than 0; the last one counts."""
    scopes = (Scope.from_node(node) for node in graph.nodes if control(node) == "scope_enter")
    return {scope.stream: scope.priority for scope in scopes if scope.stream is not None and scope.priority}
