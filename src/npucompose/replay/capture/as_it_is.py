"""The rest of a graph, run node by node without a recording."""

from __future__ import annotations

from typing import Any

from torch import fx

from npucompose.replay.refusals import NOT_RUN


def go_on(module: fx.GraphModule, begin: fx.Node, values: dict[fx.Node, Any], result: Any = NOT_RUN) -> list[Any]:
    """What the graph returns, from the node `begin` on; `result` is that node's, where it has run already."""
    node = begin
    while node.op != "output":
        values[node] = result if node is begin and result is not NOT_RUN else _value(module, node, values)
        node = node.next
    returned = fx.map_arg(node.args[0], values.__getitem__)
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _value(module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    target: Any = node.target
    if node.op == "get_attr":
        value: Any = module
        for part in str(target).split("."):
            value = getattr(value, part)
        return value
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return (module.get_submodule(target) if node.op == "call_module" else target)(*args, **kwargs)
