"""What a graph is called and what it looks like: fingerprint, counts of operators, symbols, a listing for people."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from npucompose.graphs.scopes import stream_labels

_SHORT = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"), ("bool", "b8"))
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


def op_name(node: fx.Node) -> str:
    """`aten.mm.default` for an operator, `operator.getitem` for a function, the target's own text for all else."""
    target = node.target
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
    for node in graph.nodes:
        for expression in _expressions(node.meta.get("val")):
            seen.update(dict.fromkeys(sorted(str(symbol) for symbol in expression.free_symbols)))
    return tuple(seen)


def _expressions(value: Any) -> list[Any]:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return [value.node.expr]
    if isinstance(value, (list, tuple)):
        return [expression for item in value for expression in _expressions(item)]
    if isinstance(value, torch.Tensor):
        return _expressions([*value.shape, *(value.stride() if value.layout is torch.strided else ())])
    return []


def fingerprint(graph: fx.Graph) -> str:
    """A sha256 over operators, arguments, shapes, strides, dtypes and devices.

    Equal for graphs that differ only in the names of nodes and of symbols; different when an argument, an order of
    nodes or a constant tensor differs.
    """
    numbers = {node: f"%{index}" for index, node in enumerate(graph.nodes)}
    names: dict[str, str] = {}

    def canonical(text: str) -> str:
        return _SYMBOL.sub(lambda m: names.setdefault(m[0], f"$y{len(names)}") if m[0] in known else m[0], text)

    known = frozenset(symbols(graph))
    digest = hashlib.sha256()
    for node in graph.nodes:
        named = node.op in ("placeholder", "output", "get_attr")
        what = _constant(graph, node) if node.op == "get_attr" else "" if named else op_name(node)
        arguments = "" if node.op == "placeholder" else _text((node.args, node.kwargs), numbers.__getitem__)
        line = f"{node.op} {what} {arguments} {canonical(value_text(node.meta.get('val'), stride=True))}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def _constant(graph: fx.Graph, node: fx.Node) -> str:
    """What a get_attr stands for, by content: a constant's bytes, a submodule's fingerprint."""
    owner: Any = graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    if isinstance(owner, fx.GraphModule):
        return fingerprint(owner.graph)
    plain = type(owner) in (torch.Tensor, torch.nn.Parameter) and owner.layout is torch.strided
    if plain and owner.device.type != "meta" and owner.numel():
        raw = owner.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(raw.numpy().tobytes()).hexdigest()
    return type(owner).__name__


def printed(graph: fx.Graph) -> str:
    """One line for each node, the stream behind it: `mm: f32[2, 2] = aten.mm.default(x, x)  # stream1`."""
    labels = stream_labels(graph)
    lines = [node_text(node) + (f"  # {labels[node]}" if node in labels else "") for node in graph.nodes]
    return "\n".join(lines) + "\n"


def node_text(node: fx.Node) -> str:
    """`mm: f32[2, 2] = aten.mm.default(x, x)`."""
    arguments = [_text(arg, str) for arg in node.args]
    arguments += [f"{key}={_text(value, str)}" for key, value in node.kwargs.items()]
    value = value_text(node.meta.get("val"))
    if node.op == "output":
        return f"return {', '.join(arguments)}"
    if node.op == "placeholder":
        return f"{node.name}: {value or '?'} = input"
    typed = f"{node.name}: {value}" if value else node.name
    if node.op == "get_attr":
        return f"{typed} = get_attr {op_name(node)}"
    return f"{typed} = {op_name(node)}({', '.join(arguments)})"


def _text(value: Any, name: Callable[[fx.Node], str]) -> str:
    if isinstance(value, fx.Node):
        return name(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(item, name) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item, name)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(_text(part, name) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch._ops.OpOverload):
        return str(value)
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
    return "" if value is None else f"{type(value).__name__} {value}"


def _short(dtype: torch.dtype) -> str:
    """`f32` for torch.float32, `i64` for torch.int64, `bf16`, `b8` for bool."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _SHORT:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name
