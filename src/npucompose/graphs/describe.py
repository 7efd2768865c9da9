"""What a graph is called and what it looks like: fingerprint, counts of operators, symbols, a listing for people; and
which input of Dynamo's graph each of its placeholders is."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs.effects import leaves_in, stream_labels

_SHORT = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"), ("bool", "b8"))
_GRADIENTS = ("tangents", "fwd_", "bwd_")
"""AOTAutograd's names of gradients, seeds and offsets."""
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


def op_name(node: fx.Node) -> str:
    """`aten.mm.default` for an operator, `operator.getitem` for a function, the target's own text for all else."""
    return _named(node.target)


def _named(target: Any) -> str:
    if isinstance(target, (str, torch._ops.OpOverload)):
        return str(target)
    module = str(getattr(target, "__module__", "")).removeprefix("_")
    name = str(getattr(target, "__name__", target))
    return f"{module}.{name}" if module else name


def op_counts(graph: fx.Graph) -> dict[str, int]:
    """{operator: how often}, the most frequent first: {"aten.mm.default": 3, "operator.getitem": 2}."""
    counts = Counter(op_name(node) for node in graph.nodes if node.op.startswith("call_"))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def symbols(graph: fx.Graph) -> tuple[str, ...]:
    """The symbols in the shapes, strides and numbers of a graph, in order of appearance; () for a static graph."""
    seen: dict[str, None] = {}
    for leaf in (leaf for node in graph.nodes for leaf in leaves_in(node.meta.get("val"))):
        numbers: Any = (leaf,)
        if isinstance(leaf, torch.Tensor):
            strides = leaf.stride() if leaf.layout is torch.strided else ()
            numbers = (*leaf.shape, *strides) if leaf._has_symbolic_sizes_strides else ()
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                seen.update(dict.fromkeys(sorted(str(symbol) for symbol in number.node.expr.free_symbols)))
    return tuple(seen)


class NodeLine(NamedTuple):
    """What stands in one node of a graph. A tuple: a snapshot makes thousands of them, and a capture waits for it."""

    node: fx.Node
    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    value: Any
    """Its `val`, fake tensors and numbers."""
    stream: str | None
    content: str
    """What a get_attr stands for, by content: a constant's bytes, a submodule's fingerprint."""

    @classmethod
    def from_node(cls, node: fx.Node, stream: str | None = None, content: str = "") -> NodeLine:
        value = node.meta.get("val")
        return cls(node, node.name, node.op, node.target, node.args, node.kwargs, value, stream, content)


@frozen(kw_only=True, eq=False)
class Snapshot:
    """A graph as it is now. What it is called and looks like is worked out when somebody asks, by when passes may have
    rewritten it: a node's arguments are replaced and never changed.

    A graph with symbols is described at once: what torch learns of a symbol later on changes how it is written.
    """

    lines: tuple[NodeLine, ...]
    symbols: tuple[str, ...]

    @classmethod
    def from_graph(cls, graph: fx.Graph) -> Snapshot:
        labels = stream_labels(graph)
        lines = tuple(
            NodeLine.from_node(node, labels.get(node), _constant(graph, node) if node.op == "get_attr" else "")
            for node in graph.nodes
        )
        taken = cls(lines=lines, symbols=symbols(graph))
        if taken.symbols:
            _ = taken.fingerprint, taken.text
        return taken

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 over operators, arguments, shapes, strides, dtypes and devices.

        Equal for graphs that differ only in the names of nodes and of symbols; different when an argument, an order of
        nodes or a constant tensor differs.
        """
        numbers = {line.node: f"%{index}" for index, line in enumerate(self.lines)}
        names: dict[str, str] = {}
        known = frozenset(self.symbols)

        def canonical(text: str) -> str:
            return _SYMBOL.sub(lambda m: names.setdefault(m[0], f"$y{len(names)}") if m[0] in known else m[0], text)

        digest = hashlib.sha256()
        for line in self.lines:
            named = line.op in ("placeholder", "output", "get_attr")
            what = line.content if named else _named(line.target)
            arguments = "" if line.op == "placeholder" else argument_text((line.args, line.kwargs), numbers.__getitem__)
            value = value_text(line.value, stride=True)
            digest.update(f"{line.op} {what} {arguments} {canonical(value) if known else value}\n".encode())
        return digest.hexdigest()

    @cached_property
    def text(self) -> str:
        """One line for each node, the stream behind it: `mm: f32[2, 2] = aten.mm.default(x, x)  # stream1`."""
        names = {line.node: line.name for line in self.lines}
        return "\n".join(_listed(line, names.__getitem__) for line in self.lines) + "\n"


def fingerprint(graph: fx.Graph) -> str:
    return Snapshot.from_graph(graph).fingerprint


def printed(graph: fx.Graph) -> str:
    return Snapshot.from_graph(graph).text


def _constant(graph: fx.Graph, node: fx.Node) -> str:
    owner: Any = graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    if isinstance(owner, fx.GraphModule):
        return fingerprint(owner.graph)
    plain = type(owner) in (torch.Tensor, torch.nn.Parameter) and owner.layout is torch.strided
    if plain and owner.device.type != "meta":
        with _disable_current_modes():  # while torch traces, what an operator gives would be a fake tensor
            raw = owner.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return hashlib.sha256(raw.numpy().tobytes()).hexdigest()
    return type(owner).__name__


def node_text(node: fx.Node) -> str:
    """`mm: f32[2, 2] = aten.mm.default(x, x)`."""
    return _listed(NodeLine.from_node(node), str)


def _listed(line: NodeLine, name: Callable[[fx.Node], str]) -> str:
    arguments = [argument_text(arg, name) for arg in line.args]
    arguments += [f"{key}={argument_text(value, name)}" for key, value in line.kwargs.items()]
    value = value_text(line.value)
    stream = f"  # {line.stream}" if line.stream is not None else ""
    if line.op == "output":
        return f"return {', '.join(arguments)}{stream}"
    if line.op == "placeholder":
        return f"{line.name}: {value or '?'} = input{stream}"
    typed = f"{line.name}: {value}" if value else line.name
    if line.op == "get_attr":
        return f"{typed} = get_attr {_named(line.target)}{stream}"
    return f"{typed} = {_named(line.target)}({', '.join(arguments)}){stream}"


def argument_text(value: Any, name: Callable[[fx.Node], str]) -> str:
    """`(x, 2, [y, 0.5])`: two arguments are equal, to the type of a number, where their texts are."""
    if isinstance(value, fx.Node):
        return name(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(argument_text(item, name) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {argument_text(item, name)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(argument_text(part, name) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, (torch.dtype, torch._ops.OpOverload)):
        return str(value).removeprefix("torch.")
    return repr(value)


def value_text(value: Any, stride: bool = False) -> str:
    """`f32[2, s0]`, with `stride` also strides and device; a list of them in brackets; '' when nothing is known."""
    if isinstance(value, torch.Tensor):
        text = f"{_short(value.dtype)}[{', '.join(str(size) for size in value.shape)}]"
        if stride and value.layout is torch.strided:
            text += f"/{tuple(str(step) for step in value.stride())}"
        return f"{text}@{value.device.type}" if stride else text
    if isinstance(value, (list, tuple)):
        return f"({', '.join(value_text(item, stride) for item in value)})"
    if value is None:
        return ""
    kind, text = type(value).__name__, str(value)
    return kind if " at 0x" in text else f"{kind} {text}"  # an address says nothing in another process


def _short(dtype: torch.dtype) -> str:
    """`f32` for torch.float32, `i64` for torch.int64, `bf16`, `b8` for bool."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _SHORT:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def places(placeholders: Sequence[fx.Node], known: int) -> Iterator[int | None]:
    """For each placeholder its place among Dynamo's `known` inputs; None for what is none of them.

    torch 2.9 and later write it down (`desc`). Before, Dynamo's inputs are the last ones, behind the parameters and
    buffers that its module holds, except in a graph of a backward pass or of random numbers, where nobody says.
    """
    held = len(placeholders) - known
    ordered = held >= 0 and not any(node.name.startswith(_GRADIENTS) for node in placeholders)
    for position, node in enumerate(placeholders):
        desc = node.meta.get("desc")
        place = getattr(desc, "idx", None) if desc is not None else position - held if ordered else None
        yield place if place is not None and 0 <= place < known else None
