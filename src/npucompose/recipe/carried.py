"""What an ejected script carries with it: its own fingerprint of a graph, and the edits that a frozen pass is made of.

Everything below the imports is pasted into the scripts as it stands, so it imports torch and the standard library only.
"""

from __future__ import annotations

import hashlib
import operator  # noqa: F401  edits may name its functions
import re
from contextlib import nullcontext
from typing import Any

import torch


def graph_fingerprint(graph: Any) -> str:
    """A sha256 over the nodes of an FX graph: names, operators, arguments, shapes, strides and dtypes.

    Devices and the names of symbolic sizes do not count, and a reshape counts as a view (TorchAir turns each view into
    a reshape before its second hook), so that a graph traced on a CPU is recognised on an NPU.
    """
    numbers: dict[str, str] = {}
    digest = hashlib.sha256()
    for node in graph.nodes:
        found = node.meta.get("val")
        known = _symbols(found)
        value = re.sub(r"\b[a-z]+\d+\b", lambda m, k=known: _symbol(m[0], k, numbers), _shown(found))
        called = "" if node.op in ("placeholder", "output") else _called(graph, node)
        arguments = "" if node.op == "placeholder" else _shown((node.args, dict(node.kwargs)))
        name = "" if node.op == "output" else node.name
        digest.update(f"{node.op} {name} {called} {arguments} {value}\n".encode())
    return digest.hexdigest()


def _symbol(name: str, known: set[str], numbers: dict[str, str]) -> str:
    return numbers.setdefault(name, f"size{len(numbers)}") if name in known or name in numbers else name


def _symbols(value: Any) -> set[str]:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {str(symbol) for symbol in value.node.expr.free_symbols}
    if isinstance(value, (list, tuple)):
        return {symbol for item in value for symbol in _symbols(item)}
    if isinstance(value, torch.Tensor):
        return _symbols([*value.shape, *(value.stride() if value.layout is torch.strided else ())])
    return set()


def _called(graph: Any, node: Any) -> str:
    target = node.target
    if node.op == "get_attr":
        owner: Any = graph.owning_module
        for part in str(target).split("."):
            owner = getattr(owner, part, None)
        if type(owner) in (torch.Tensor, torch.nn.Parameter) and owner.device.type != "meta" and owner.numel():
            raw = owner.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return hashlib.sha256(bytes(raw.tolist())).hexdigest()
        return graph_fingerprint(owner.graph) if isinstance(owner, torch.fx.GraphModule) else type(owner).__name__
    if isinstance(target, torch._ops.OpOverload):
        return "aten.view.default" if str(target) == "aten.reshape.default" else str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = f"/{tuple(map(str, value.stride()))}" if value.layout is torch.strided else ""
        return f"{value.dtype}{list(map(str, value.shape))}{strides}"
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_shown, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    return "device" if isinstance(value, torch.device) else str(value)


class GraphEdit:
    """Edits of one FX graph by node names; new nodes get the value that their operator has for fake tensors."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}

    def __getitem__(self, name: str) -> Any:
        return self.nodes[name]

    def insert(self, name: str, target: Any, args: Any = (), kwargs: Any = None, *, after: str) -> None:
        """A new call of `target`, directly behind the node `after`."""
        with self.graph.inserting_after(self.nodes[after]):
            node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs or {}), name)
        if node.name != name:
            raise RuntimeError(f"the name '{name}' is taken in this graph: the new node would be '{node.name}'")
        self.nodes[name] = node
        node.meta["val"] = self._value(node)

    def move(self, name: str, *, after: str) -> None:
        self.nodes[after].append(self.nodes[name])

    def replace(self, name: str, by: str) -> None:
        """Who used `name` uses `by`."""
        self.nodes[name].replace_all_uses_with(self.nodes[by])

    def arguments(self, name: str, args: Any, kwargs: Any = None) -> None:
        """Other arguments for one node."""
        self.nodes[name].args, self.nodes[name].kwargs = tuple(args), dict(kwargs or {})

    def remove(self, *names: str) -> None:
        """Nodes that nobody uses any more, users first."""
        for name in names:
            self.graph.erase_node(self.nodes.pop(name))

    def _value(self, node: Any) -> Any:
        values = [value for other in self.graph.nodes for value in _tensors(other.meta.get("val"))]
        mode = next((value.fake_mode for value in values if hasattr(value, "fake_mode")), nullcontext())
        args = torch.fx.map_arg(node.args, lambda n: n.meta.get("val"))
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: n.meta.get("val"))
        with mode:
            return node.target(*args, **kwargs)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def apply_frozen(graph_module: Any, frozen: dict[str, Any], passes: str) -> None:
    """Apply the edits that were frozen for exactly this graph; any other graph is refused."""
    found = graph_fingerprint(graph_module.graph)
    if found not in frozen:
        raise RuntimeError(
            f"The passes {passes} were frozen for the graph {', '.join(key[:12] for key in frozen)}, and this graph is "
            f"another one, {found[:12]}: the model, its shapes or dtypes, or the version of torch have changed. "
            "Eject the script again for this model and these inputs."
        )
    frozen[found](GraphEdit(graph_module.graph))
    graph_module.graph.lint()
    graph_module.recompile()
