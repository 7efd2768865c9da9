"""What nodes of an FX graph match: a name, a module or a line of the model; a call's arguments; a small graph.

Arguments go by the names of the operator's schema, however the call was written and whatever their rank; a small graph
is searched backwards from its last node. Changes nothing.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from npucompose.graphs.describe import op_name
from npucompose.ops import define_installed
from npucompose.schema.adapt import When
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Match, SourceMatch, fits

aten = torch.ops.aten
COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor)
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
Arguments = Mapping[str, Any]
"""{argument's name: what the call gives, or the schema's default}; nodes stand as nodes."""
_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*(?:\n(?!\s*File ")\s*(?P<code>[^\n]*))?')
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_KEY = re.compile(r"(?:\.?_modules)?\[['\"]?([^'\"\]]+)['\"]?\]")
"""One step of a path: `['0']`, up to torch 2.9 `._modules['0']`."""


# Where a node comes from.


def targets(node: fx.Node) -> tuple[str, ...]:
    """An overload's name and its packet's: ("aten.mm.default", "aten.mm")."""
    packet = getattr(node.target, "overloadpacket", None)
    return (op_name(node),) if packet is None else (op_name(node), str(packet))


def names(node: fx.Node) -> tuple[str, ...]:
    """A node has one."""
    return (node.name,)


def modules(node: fx.Node) -> tuple[str, ...]:
    """The dotted paths of the modules a node was called in, outermost first: ("layers.0", "layers.0.mlp")."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = (_KEY.sub(r".\1", _ROOT.sub("", str(entry[0]))).lstrip(".") for entry in stack.values())
    return tuple(path for path in paths if path)


def frames(node: fx.Node) -> list[re.Match[str]]:
    """The calls that made a node, outermost first: `file`, `line` and `code` of each."""
    return list(_FRAME.finditer(node.meta.get("stack_trace") or ""))


def source_line(node: fx.Node) -> str:
    """`model.py:12: idx = mask.nonzero()`, the innermost call's file as it was named; '' when nothing is known."""
    return _line(frames(node))


def model_line(node: fx.Node) -> str:
    """`source_line`, but of the innermost call that is not in torch: what a person can change."""
    found = frames(node)
    return _line([frame for frame in found if not frame["file"].startswith(_TORCH)] or found)


def _line(found: Sequence[re.Match[str]]) -> str:
    return f"{found[-1]['file']}:{found[-1]['line']}: {(found[-1]['code'] or '').strip()}" if found else ""


# A node against what a person wrote of it.

_TEXTS: Mapping[str, Callable[[fx.Node], tuple[str, ...]]] = {"target": targets, "name": names, "module": modules}
"""{field of a Match: the texts of a node, one of which must fit}."""


def matches(match: Match, node: fx.Node) -> bool:
    """Every field that is given fits."""
    for name, texts in _TEXTS.items():
        wanted = getattr(match, name)
        if wanted is not None and not any(fits(wanted, text) for text in texts(node)):
            return False
    return match.source is None or _comes_from(match.source, node)


def _comes_from(source: SourceMatch, node: fx.Node) -> bool:
    wanted = PurePath(source.file).parts
    first, last = source.lines or (1, 1 << 60)
    return any(
        PurePath(frame["file"]).parts[-len(wanted) :] == wanted and first <= int(frame["line"]) <= last
        for frame in frames(node)
    )


def find(match: Match, nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    return tuple(node for node in nodes if matches(match, node))


def why_none(match: Match, kernels: Sequence[fx.Node], others: Sequence[fx.Node]) -> str:
    """Why `match` finds no kernel: the field that fits nothing, with what is near it; else what was found instead."""
    if find(match, others):
        return "it finds only views, inputs or sizes, which start no kernel and stay with what they are made of"
    for name, texts in _TEXTS.items():
        given = getattr(match, name)
        if given is not None and not find(Match(**{name: given}), kernels):
            present = [text for node in kernels for text in texts(node)[: 1 if name == "target" else None]]
            return f"no {name} fits '{given}'. {_near(given, list(dict.fromkeys(present)))}"
    if match.source is not None and not find(Match(source=match.source), kernels):
        lines = {f"{PurePath(frame['file']).name}:{frame['line']}" for node in kernels for frame in frames(node)[-1:]}
        return f"no source line fits. {_near(match.source.file, sorted(lines))}"
    return "every field fits some node, but no node fits them all"


def _near(given: str, present: list[str]) -> str:
    if not present:
        return "The nodes of this graph do not say theirs."
    close = difflib.get_close_matches(given.removeprefix("re:"), present, n=3, cutoff=0.5)
    more = ", …" if not close and len(present) > 8 else ""
    return f"{'Near' if close else 'There are'}: {', '.join(close or present[:8])}{more}."


# A call by its arguments.


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


def arguments_of(node: fx.Node, *, defaults: bool = True) -> Arguments:
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


def with_arguments(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Arguments, changed: Arguments
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with other values for the arguments in `changed`, each where the call gives it."""
    new_args, new_kwargs = list(args), dict(kwargs)
    for index, argument in enumerate(target._schema.arguments):
        if argument.name not in changed:
            continue
        if index < len(new_args):
            new_args[index] = changed[argument.name]
        else:
            new_kwargs[argument.name] = changed[argument.name]
    return tuple(new_args), new_kwargs


def part_of(arguments: Arguments, name: str) -> Any:
    """`x`, or `indices[0]`; None where the list is shorter or no list."""
    base, part, rest = name.partition("[")
    found = arguments.get(base)
    if not part:
        return found
    index = int(rest.removesuffix("]"))
    return found[index] if isinstance(found, (list, tuple)) and index < len(found) else None


def value_of(found: Any) -> Any:
    """A node's fake value; anything else as it is."""
    return found.meta.get("val") if isinstance(found, fx.Node) else found


def holds(when: When, arguments: Arguments, can: Capabilities) -> bool:
    """Everything that `when` names."""
    if (when.device and can.device not in when.device) or (when.mode and can.mode not in when.mode):
        return False
    checks: tuple[tuple[Mapping[str, Any], Callable[[Any, Any], bool]], ...] = (
        (when.length, _has_length),
        (when.args, _equals),
        (when.dtype, _has_dtype),
        (when.rank, _has_rank),
        (when.shape, _has_shape),
        (when.layout, has_layout),
    )
    return all(
        check(value_of(part_of(arguments, name)), what) for wanted, check in checks for name, what in wanted.items()
    )


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
    if not _has_rank(found, (len(wanted),)):
        return False
    return all(
        size is None or statically_known_true(have == size) for have, size in zip(found.shape, wanted, strict=True)
    )


def has_layout(found: Any, wanted: Any) -> bool:
    """Whether a tensor lies in memory as the name in FORMATS says."""
    if not isinstance(found, torch.Tensor) or (wanted == "channels_last" and found.dim() != 4):
        return False
    return found.is_contiguous(memory_format=FORMATS[wanted])


# A small graph inside a large one.


@define
class Occurrence:
    """Nodes of the small graph -> nodes of the large one, scalars by name."""

    nodes: dict[fx.Node, fx.Node] = field(factory=dict)
    numbers: dict[str, float] = field(factory=dict)


@frozen(kw_only=True, eq=False)
class Subgraph:
    """A small graph to be found in a large one; a number that `scalars` names stands there for any number."""

    tensors: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    inner: frozenset[fx.Node]
    """Its calls that are no outputs: nobody else may read what they stand for."""
    scalars: Mapping[str, float]

    @classmethod
    def from_graph(cls, graph: fx.Graph, scalars: Mapping[str, float]) -> Subgraph:
        results: Any = graph.output_node().args[0]
        outputs = tuple(results) if isinstance(results, (list, tuple)) else (results,)
        return cls(
            tensors=tuple(graph.find_nodes(op="placeholder")),
            outputs=outputs,
            inner=frozenset(node for node in graph.nodes if node.op == "call_function") - frozenset(outputs),
            scalars=scalars,
        )

    @property
    def anchor(self) -> fx.Node:
        """The first result: from here the search goes back."""
        return self.outputs[0]

    def at(self, node: fx.Node) -> Occurrence | None:
        """What is found with the anchor at `node`."""
        found = Occurrence()
        if not self._node(self.anchor, node, found):
            return None
        if any(output not in found.nodes for output in self.outputs) or len(found.numbers) != len(self.scalars):
            return None
        mapped = set(found.nodes.values())
        hidden = all(user in mapped for inner in self.inner for user in found.nodes[inner].users)
        return found if hidden else None

    def _node(self, wanted: fx.Node, node: Any, found: Occurrence) -> bool:
        if not isinstance(node, fx.Node):
            return False
        if wanted in found.nodes:
            return found.nodes[wanted] is node
        if wanted.op != "placeholder" and (node.op != "call_function" or node.target != wanted.target):
            return False
        found.nodes[wanted] = node
        return wanted.op == "placeholder" or self._call(wanted, node, found)

    def _call(self, wanted: fx.Node, node: fx.Node, found: Occurrence) -> bool:
        orders: list[Sequence[Any]] = [node.args]
        if node.target in COMMUTATIVE and len(node.args) == 2:
            orders.append(node.args[::-1])
        nodes, numbers = dict(found.nodes), dict(found.numbers)
        for args in orders:
            found.nodes, found.numbers = dict(nodes), dict(numbers)
            if self._value(wanted.args, args, found) and self._value(wanted.kwargs, node.kwargs, found):
                return True
        return False

    def _value(self, wanted: Any, given: Any, found: Occurrence) -> bool:
        if isinstance(wanted, fx.Node):
            return self._node(wanted, given, found)
        if isinstance(wanted, Mapping):
            same = wanted.keys() == given.keys()
            return same and all(self._value(value, given[key], found) for key, value in wanted.items())
        if isinstance(wanted, (list, tuple)):
            same = isinstance(given, (list, tuple)) and len(wanted) == len(given)
            return same and all(self._value(a, b, found) for a, b in zip(wanted, given, strict=True))
        for name, stands_for in self.scalars.items():
            if type(wanted) is type(stands_for) and wanted == stands_for:
                return type(given) in (int, float) and found.numbers.setdefault(name, given) == given
        return type(wanted) is type(given) and wanted == given
