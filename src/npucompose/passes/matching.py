"""What nodes of an FX graph match: one call by its arguments' fake values, or a small graph inside a large one.

A call is looked at by the names of its operator's arguments, whatever their rank and however it was written; a small
graph is searched backwards from its last node. Changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from attrs import define, field, frozen
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.ops import define_installed
from npucompose.passes.metadata import value_of
from npucompose.schema.adapt import CastAround, Dispatch, LayoutAround, Rule, When
from npucompose.schema.capabilities import Capabilities

if TYPE_CHECKING:
    from npucompose.passes.replace import Pattern

aten = torch.ops.aten
COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor)
Bound = Mapping[str, Any]
"""{argument's name: what the call gives, or the schema's default}; nodes stand as nodes."""


@functools.cache
def operator_of(name: str) -> torch._ops.OpOverload | None:
    """`aten.relu.default` -> the overload; None where nobody has defined it."""
    define_installed((name,))
    packet, _, overload = name.rpartition(".")
    found = getattr(packet_of(packet), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def packet_of(name: str) -> torch._ops.OpOverloadPacket | None:
    """`aten.relu`; None for what is no operator, as the methods of torch.ops itself."""
    namespace, _, packet = name.partition(".")
    space = getattr(torch.ops, namespace)
    found = getattr(space, packet, None) if isinstance(space, torch._ops._OpNamespace) else None
    return found if isinstance(found, torch._ops.OpOverloadPacket) else None


def bound(node: fx.Node, *, defaults: bool = True) -> Bound:
    """The arguments of a call by name; with `defaults` also those that the call leaves out."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            given[argument.name] = node.args[index]
        elif argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif defaults and argument.has_default_value():
            given[argument.name] = argument.default_value
    return given


def argument(arguments: Mapping[str, Any], name: str) -> Any:
    """`x`, or `indices[0]`; None where the list is shorter or no list."""
    base, part, rest = name.partition("[")
    found = arguments.get(base)
    if not part:
        return found
    index = int(rest.removesuffix("]"))
    return found[index] if isinstance(found, (list, tuple)) and index < len(found) else None


def matches(rule: Rule, node: fx.Node, arguments: Bound, can: Capabilities) -> bool:
    """Everything that `rule.when` names holds; a dispatch also needs a case, and a fake value is needed always."""
    if node.meta.get("val") is None or not _surroundings(rule.when, can):
        return False
    when = rule.when
    checks: tuple[tuple[Mapping[str, Any], Callable[[Any, Any], bool]], ...] = (
        (when.length, _has_length),
        (when.args, _equals),
        (when.dtype, _has_dtype),
        (when.rank, _has_rank),
        (when.shape, _has_shape),
        (when.layout, _lies),
    )
    for wanted, holds in checks:
        if not all(holds(value_of(argument(arguments, name)), what) for name, what in wanted.items()):
            return False
    if isinstance(rule, Dispatch):
        return case_of(arguments.get(rule.by)) in rule.cases
    if isinstance(rule, CastAround):  # nothing to cast: the rule would put the same call in the call's place
        wanted = getattr(torch, rule.compute)
        tensors = [value_of(arguments.get(name)) for name in rule.inputs]
        return any(isinstance(t, torch.Tensor) and t.dtype != wanted for t in tensors)
    if isinstance(rule, LayoutAround):
        tensors = [value_of(arguments.get(name)) for name in rule.inputs]
        return any(isinstance(t, torch.Tensor) and t.dim() == len(rule.perm) for t in tensors)
    return True


def case_of(found: Any) -> str:
    """How YAML's keys say a value: max, true, 3."""
    return str(found).lower() if isinstance(found, bool) else str(found)


def _surroundings(when: When, can: Capabilities) -> bool:
    return (not when.device or can.device in when.device) and (not when.mode or can.mode in when.mode)


def _equals(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(wanted)
            and all(_equals(value_of(a), b) for a, b in zip(found, wanted, strict=True))
        )
    if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return statically_known_true(found == wanted)  # a guard would bind the graph to this size
    if isinstance(found, torch.Tensor) or wanted is None:
        return found is wanted
    if isinstance(found, torch.dtype):
        return str(found) == f"torch.{wanted}"
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _has_dtype(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor):
        return False
    kind = "floating" if found.is_floating_point() else "complex" if found.is_complex() else "integer"
    return str(found.dtype).removeprefix("torch.") in wanted or (kind in wanted and found.dtype is not torch.bool)


def _has_length(found: Any, wanted: Any) -> bool:
    return isinstance(found, (list, tuple)) and len(found) in wanted


def _has_rank(found: Any, wanted: Any) -> bool:
    return isinstance(found, torch.Tensor) and found.dim() in wanted


def _has_shape(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor) or found.dim() != len(wanted):
        return False
    return all(
        size is None or statically_known_true(have == size) for have, size in zip(found.shape, wanted, strict=True)
    )


def _lies(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor):
        return False
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if wanted == "channels_last" and found.dim() != 4:
        return False
    return found.is_contiguous(memory_format=formats[wanted])


# A small graph inside a large one.


@frozen(kw_only=True, eq=False)
class Search:
    """One way to write a pattern, as a graph."""

    pattern: Pattern
    tensors: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    inner: frozenset[fx.Node]
    """Its calls that are no outputs: nobody else may read what they stand for."""

    @classmethod
    def of(cls, pattern: Pattern, find: Callable[..., Any], dtype: torch.dtype) -> Search:
        graph = traced(
            lambda *given: find(*given, *pattern.scalars.values()), [x.to("meta", dtype) for x in pattern.inputs()]
        )
        results: Any = next(node for node in graph.nodes if node.op == "output").args[0]
        outputs = tuple(results) if isinstance(results, (list, tuple)) else (results,)
        return cls(
            pattern=pattern,
            tensors=tuple(node for node in graph.nodes if node.op == "placeholder"),
            outputs=outputs,
            inner=frozenset(n for n in graph.nodes if n.op == "call_function") - frozenset(outputs),
        )

    @property
    def anchor(self) -> fx.Node:
        """The first result: from here the search goes back."""
        return self.outputs[0]


@define
class Occurrence:
    """Nodes of the pattern -> nodes of the graph, scalars by name."""

    nodes: dict[fx.Node, fx.Node] = field(factory=dict)
    numbers: dict[str, float] = field(factory=dict)


@functools.cache
def searches(pattern: type[Pattern]) -> tuple[Search, ...]:
    """Every way in which a pattern may be written, traced once in a process."""
    made = pattern()
    return tuple(Search.of(made, find, dtype) for find, dtype in made.finds())


def traced(function: Callable[..., Any], inputs: Sequence[Any], mode: Literal["real", "fake"] = "real") -> fx.Graph:
    """The graph of `function`; passes run while torch traces itself, and that is put away meanwhile.

    In mode "real" torch notes each value without its storage offset.
    """
    with _disable_current_modes(), torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*inputs).graph


def occurrence(search: Search, node: fx.Node) -> Occurrence | None:
    """What `search` finds with its last call at `node`."""
    found = Occurrence()
    if not _node(search, search.anchor, node, found):
        return None
    if any(output not in found.nodes for output in search.outputs) or len(found.numbers) != len(search.pattern.scalars):
        return None
    mapped = set(found.nodes.values())
    for inner in search.inner:
        if not all(user in mapped for user in found.nodes[inner].users):
            return None
    given = [found.nodes[tensor].meta.get("val") for tensor in search.tensors]
    values = [value for value in given if isinstance(value, torch.Tensor)]
    if len(values) < len(given):
        return None
    return found if search.pattern.fits(values, found.numbers) else None


def _node(search: Search, wanted: fx.Node, node: Any, found: Occurrence) -> bool:
    if not isinstance(node, fx.Node):
        return False
    if wanted in found.nodes:
        return found.nodes[wanted] is node
    if wanted.op == "placeholder":
        found.nodes[wanted] = node
        return True
    if node.op != "call_function" or node.target != wanted.target or len(node.args) != len(wanted.args):
        return False
    found.nodes[wanted] = node
    orders: list[Sequence[Any]] = [node.args]
    if node.target in COMMUTATIVE and len(node.args) == 2:
        orders.append(node.args[::-1])
    before = Occurrence(dict(found.nodes), dict(found.numbers))
    for args in orders:
        found.nodes, found.numbers = dict(before.nodes), dict(before.numbers)
        if _all(search, wanted.args, args, found) and _kwargs(search, wanted.kwargs, node.kwargs, found):
            return True
    return False


def _kwargs(search: Search, wanted: Mapping[str, Any], given: Mapping[str, Any], found: Occurrence) -> bool:
    return wanted.keys() == given.keys() and _all(search, list(wanted.values()), [given[k] for k in wanted], found)


def _all(search: Search, wanted: Sequence[Any], given: Sequence[Any], found: Occurrence) -> bool:
    return len(wanted) == len(given) and all(_value(search, a, b, found) for a, b in zip(wanted, given, strict=True))


def _value(search: Search, wanted: Any, given: Any, found: Occurrence) -> bool:
    if isinstance(wanted, fx.Node):
        return _node(search, wanted, given, found)
    if isinstance(wanted, (list, tuple)):
        return isinstance(given, (list, tuple)) and _all(search, wanted, given, found)
    for name, stands_for in search.pattern.scalars.items():
        if type(wanted) is type(stands_for) and wanted == stands_for:
            return type(given) in (int, float) and found.numbers.setdefault(name, given) == given
    return type(wanted) is type(given) and wanted == given
