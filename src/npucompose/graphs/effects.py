"""What one FX node does to memory, to random numbers and to the world, read from its operator's schema.

Whatever has no schema (a higher order operator, a Python function on tensors, a submodule) is *opaque*: it is taken
to write every tensor it is given, to draw random numbers and to have side effects. An operator that functionalization
wrapped is known to write nothing.

Stream scopes (scope_enter/scope_exit, record, wait) are read here too, whatever package defined the operators.
TorchAir's live in `torch.ops.air`, those of the npugraph_ex package in `torch.ops.npugraph_ex`; the names and the
arguments are the same, so a node is recognised by name and the operators need not be defined to read others.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from attrs import frozen
from torch import fx
from torch.fx.node import _side_effectful_functions

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


def has_only_limits(graph: fx.Graph) -> bool:
    """Whether what stands in the graph of scopes says on how many cores kernels run, and nothing else."""
    kinds = {node: kind for node in graph.nodes if (kind := control(node)) is not None}
    scopes = [Scope.from_node(node) for node, kind in kinds.items() if kind == "scope_enter"]
    return set(kinds.values()) <= {"scope_enter", "scope_exit"} and all(scope.keys == CORES for scope in scopes)


def priorities(graph: fx.Graph) -> dict[str, int]:
    """{stream: priority} of the scopes that name one other than 0; the last one counts."""
    scopes = (Scope.from_node(node) for node in graph.nodes if control(node) == "scope_enter")
    return {scope.stream: scope.priority for scope in scopes if scope.stream is not None and scope.priority}


HOST_CHECKS = frozenset(
    ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
)
"""Operators that look at sizes on the host and start no kernel."""

MAYBE_COPIES = frozenset(("reshape", "reshape_as", "contiguous", "flatten", "ravel", "to"))
"""Operators whose schema says view and which copy when they must; only the fake values tell."""

COLLECTIVES = frozenset(("_c10d_functional", "c10d_functional", "c10d"))
"""Namespaces of communication: all ranks must issue it in the same order."""
WAIT = "wait_tensor"
"""Of the same namespaces: done when the collective that fills its argument is done."""

_CONTROL_SPACES = tuple(f"{space}::" for space in NAMESPACES)
AUTO_FUNCTIONALIZED = ("auto_functionalized", "auto_functionalized_v2")
"""Operators of higher order: functionalization puts them around one that writes."""
_HOST_MODULES = frozenset((operator.__name__, "_operator", math.__name__, "builtins", "torch"))


@frozen
class OpFacts:
    """What is known of an operator, worked out once for each overload."""

    view: bool = False
    """Its result is memory of its inputs, or may be (`may_copy`)."""
    may_copy: bool = False
    writes: tuple[tuple[int, str], ...] | None = ()
    """(position, name) of the arguments that are written; None: all, for all that is known."""
    in_place: bool = False
    """Its one result is an argument that it writes: `relu_(c)` is c."""
    random: bool = False
    """Draws from a generator: its place among the other drawers decides its numbers."""
    effect: bool = False
    """Returns nothing, communicates, or torch knows it to have a side effect."""
    host: bool = False
    """Reads sizes or checks them; starts no kernel."""
    changes_metadata: bool = False
    """In place on shape or strides (`t_`, `resize_`): an identity view is no identity beside it."""
    collective: bool = False
    """It is done only when all ranks of a process group have issued it; `waits` is where that is certain. Until then it
    reads its arguments and writes its result on its own (torch/_inductor/ir.py, `_WaitKernel`, has the same rule)."""
    waits: bool = False
    """It is done when the collective that fills its argument is, and returns the argument."""
    makes_only: bool = False
    """It starts a kernel that reads its inputs, makes new memory, and does nothing else."""


GETITEM, HOST = OpFacts(view=True), OpFacts(host=True)
OPAQUE = OpFacts(writes=None, random=True, effect=True)
"""Nothing is known of it, so everything is feared."""
FUNCTIONALIZED = OpFacts(random=True, effect=True)
"""`auto_functionalized_v2(op, …)` computes what `op` would write in new memory, and has whatever other effect `op` has
(torch/_higher_order_ops/auto_functionalize.py)."""


@cache
def facts(op: torch._ops.OpOverload) -> OpFacts:
    schema = op._schema
    name = schema.name.partition("::")[2]
    waits = op.namespace in COLLECTIVES and name == WAIT
    written = tuple(
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if waits or (argument.alias_info is not None and argument.alias_info.is_write)
    )
    aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
    view = not written and (any(not info.is_write for info in aliases) or name == "_unsafe_view")
    random = torch.Tag.nondeterministic_seeded in op.tags
    collective = op.namespace in COLLECTIVES and not waits
    effect = (not schema.returns and not written) or (op in _side_effectful_functions and not waits) or collective
    host = name.startswith("sym_") or name in HOST_CHECKS
    return OpFacts(
        view=view,
        may_copy=name in MAYBE_COPIES,
        writes=written,
        in_place=waits or [r.alias_info is not None and r.alias_info.is_write for r in schema.returns] == [True],
        random=random,
        effect=effect,
        host=host,
        changes_metadata=torch.Tag.inplace_view in op.tags,
        collective=collective,
        waits=waits,
        makes_only=not (view or written or random or effect or host or schema.name.startswith(_CONTROL_SPACES)),
    )


def op_facts(node: fx.Node) -> OpFacts:
    """Of an operator what its schema says; of all else: host work, a getitem, a call made functional, or opaque."""
    if isinstance(node.target, torch._ops.OpOverload):
        return facts(node.target)
    if is_functional_call(node):
        return FUNCTIONALIZED
    if is_getitem(node):
        return GETITEM
    return HOST if node.op in ("placeholder", "get_attr", "output") or _is_arithmetic(node) else OPAQUE


def is_functional_call(node: fx.Node) -> bool:
    """Whether it is the functional form of an operator that writes."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in AUTO_FUNCTIONALIZED


def _is_arithmetic(node: fx.Node) -> bool:
    """On numbers. The name of a method or a submodule, and an operator of higher order, are of no such module."""
    if getattr(node.target, "__module__", None) not in _HOST_MODULES or holds_tensor(node.meta.get("val")):
        return False
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return not any(value is None or holds_tensor(value) for value in values)


def leaves_in(value: Any) -> Iterator[Any]:
    """What nested arguments or results hold, in order, repeated as often as it is written."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves_in(item)
    elif isinstance(value, slice):
        yield from leaves_in((value.start, value.stop, value.step))
    else:
        yield value


def nodes_in(value: Any) -> Iterator[fx.Node]:
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, fx.Node))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, torch.Tensor))


def holds_tensor(value: Any) -> bool:
    return next(tensors_in(value), None) is not None


def is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def is_host(node: fx.Node) -> bool:
    """No tensor is computed: inputs, constants, arithmetic on sizes, checks of sizes, the output."""
    return op_facts(node).host


def written_by(node: fx.Node) -> tuple[fx.Node, ...]:
    """The arguments of `node` whose memory it changes: `copy_(x, y)` writes x."""
    writes = op_facts(node).writes
    if writes is None:
        return tuple(node.all_input_nodes)
    given = [node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in writes]
    return tuple(dict.fromkeys(nodes_in(given)))


def has_effect(node: fx.Node) -> bool:
    """Something besides its result matters: a check, a print, a stream scope, a collective, the unknown."""
    return op_facts(node).effect or control(node) is not None


def is_removable(node: fx.Node) -> bool:
    """Nobody notices when it is gone, once nobody reads its result."""
    if node.op in ("placeholder", "output", "call_module", "call_method"):
        return False
    if node.op == "get_attr":
        return True
    if node.meta.get("unbacked_bindings"):
        return False  # other nodes' shapes are written in the symbol that is born here
    return not (has_effect(node) or op_facts(node).random or written_by(node) or node.is_impure())


def is_collective(node: fx.Node) -> bool:
    return op_facts(node).collective


def group_of(node: fx.Node) -> str | None:
    """The process group of a collective, where the operator names one."""
    if not is_collective(node) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("group_name")
    return given if isinstance(given, str) else None


def waits_for(collective: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes that wait for what a collective makes or writes: until the last of them it reads its arguments."""
    found: dict[fx.Node, None] = {}
    todo = [collective, *written_by(collective)]
    while todo:
        for user in todo.pop().users:
            if op_facts(user).waits:
                found[user] = None
            elif is_getitem(user):
                todo.append(user)
    return tuple(found)
