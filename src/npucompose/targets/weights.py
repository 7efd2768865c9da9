"""A weight as it was when a graph was made of it: by what it is told that it has changed, and under which name.

Knows tensors and Dynamo's names of them; what becomes of a change is not its business.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from torch import fx

SAMPLE = 64
"""So many bytes of a weight on the CPU are compared: writes through `.data` leave no other trace."""
_STEP = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]|\.(\w+)")


class Weight:
    """A tensor that Dynamo made an attribute of its graph. `change` says in words what has become of it."""

    def __init__(self, tensor: torch.Tensor, name: str, root: weakref.ref[nn.Module] | None) -> None:
        self.tensor, self.name, self.root = tensor, name, root
        self.frozen = False
        """A constant of the graph; otherwise the graph reads it, and only its layout is part of the graph."""
        self.watchable = is_watchable(tensor)
        self._layout = _layout(tensor)
        self.version = tensor._version if self.watchable else 0
        self.address = tensor.data_ptr() if self.watchable else 0
        self.sample = _sample(tensor) if self.watchable else None
        self.sampled = bytes(self.sample) if self.sample is not None else b""

    def change(self) -> str | None:
        """`fc.weight was written to`; None where it is as it was."""
        if not self._is_in_place():
            return f"{self.name} was replaced or deleted"
        if _layout(self.tensor) != self._layout:
            return f"{self.name} has another dtype, device, shape or stride"
        if not self.frozen:
            return None
        if self.tensor.data_ptr() != self.address:
            return f"{self.name} was given other memory"
        if self.tensor._version != self.version:
            return f"{self.name} was written to"
        if self.sample is not None and bytes(self.sample) != self.sampled:
            return f"{self.name} was written to through .data"
        return None

    def _is_in_place(self) -> bool:
        """The model has this very tensor under its name, or there is no model to ask."""
        root = None if self.root is None else self.root()
        return root is None or _reached(root, self.name) is self.tensor


def is_watchable(tensor: torch.Tensor) -> bool:
    """Not so an inference tensor, which counts no versions, and a tensor that has no memory of its own."""
    strided = tensor.layout == torch.strided and tensor.device.type != "meta"
    return strided and not tensor.is_inference() and not is_traceable_wrapper_subclass(tensor)


def weights_of(graph_module: fx.GraphModule) -> list[Weight]:
    """The tensors that a graph of Dynamo names as its own attributes, under the names that the model has for them."""
    sources: Mapping[str, Any] = getattr(graph_module, "_param_name_to_source", None) or {}
    modules = _modules()
    found: dict[int, Weight] = {}
    for name in dict.fromkeys(str(node.target) for node in graph_module.graph.nodes if node.op == "get_attr"):
        tensor = getattr(graph_module, name, None)
        if isinstance(tensor, torch.Tensor) and id(tensor) not in found:
            found[id(tensor)] = _placed(tensor, _text(sources.get(name)) or name, modules)
    return list(found.values())


def modules_at_hand() -> list[nn.Module]:
    """The modules that Dynamo has met in what it is tracing."""
    return list(_modules().values())


def _modules() -> dict[str, nn.Module]:
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    met: Mapping[str, Any] = {} if context is None else context.module_context.nn_modules
    return {name: module for name, module in met.items() if isinstance(module, nn.Module)}


def _placed(tensor: torch.Tensor, text: str, modules: Mapping[str, nn.Module]) -> Weight:
    """`L['self']._modules['fc']._parameters['weight']` is `fc.weight` of the module `L['self']`."""
    for root in sorted((name for name in modules if text.startswith(name)), key=len):
        name = _name(text[len(root) :])
        if name and _reached(modules[root], name) is tensor:
            return Weight(tensor, name, weakref.ref(modules[root]))
    return Weight(tensor, text, None)


def _name(steps: str) -> str:
    """Dotted; empty where a step is none of a module's own."""
    found = list(_STEP.finditer(steps))
    return ".".join(step[1] or step[2] for step in found) if "".join(step[0] for step in found) == steps else ""


def _reached(root: nn.Module, name: str) -> Any:
    """What the module has under a dotted name; None where it has nothing."""
    return reduce(lambda value, step: getattr(value, step, None), name.split("."), root)


def _text(source: Any) -> str:
    name: Any = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    stride = tensor.stride() if tensor.layout == torch.strided else ()
    return tensor.dtype, tensor.device, tuple(tensor.shape), stride


def _sample(tensor: torch.Tensor) -> memoryview | None:
    """The memory in the middle of a tensor on the CPU, live; to be read as long as the tensor's address holds."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return None
    extent = (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
    taken = min(SAMPLE, extent)
    begin = tensor.data_ptr() + (extent - taken) // 2
    return memoryview((ctypes.c_char * taken).from_address(begin))
