"""The key of what a backend makes of a graph of Dynamo's: all that decides it but the values of the weights.

Those are the graph (operators, arguments, forms of tensors, where in the model a node comes from), the passes and their
options, the backend's and torch's settings, the sources of this package, torch and the machine. A graph in which
anything stands whose content cannot be named has no key: an operator that is not torch's, a size that is a symbol, a
function among the settings.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._ops import OpOverload, OpOverloadPacket

import npucompose
from npucompose.machine import compilers, processor, thread_settings

if TYPE_CHECKING:
    from npucompose.targets.backend import Backend

OURS = ("npucompose", "npucompose_replay")
PACKAGES = (Path(npucompose.__file__).resolve().parent, Path(__file__).resolve().parents[1])
PLAIN = (
    int,
    float,
    complex,
    str,
    bool,
    type(None),
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
"""Types whose values are all that repr says."""
OF_TORCH = frozenset({"aten", "prims"})
MODULES = frozenset({"torch", "_operator", "operator", "math", "builtins"})
"""Of the functions that a graph may call."""
PLACES = ("nn_module_stack", "stack_trace")
"""What passes find nodes by, beside what the nodes are."""


class NoKey(Exception):
    """Why a graph has no key."""


def key_of(backend: Backend, graph_module: fx.GraphModule, inputs: Sequence[Any], sources: Sequence[Any]) -> str:
    """A digest; NoKey where there is none. `sources` are Dynamo's names of the inputs."""
    found = hashlib.sha256()
    for part in _parts(backend, graph_module, inputs, sources):
        found.update(f"{part}\n".encode())
    return found.hexdigest()[:32]


def _parts(
    backend: Backend, graph_module: fx.GraphModule, inputs: Sequence[Any], sources: Sequence[Any]
) -> Iterator[str]:
    yield text(list(sources))
    for value in inputs:
        yield tensor_text(value)
    for node in graph_module.graph.nodes:
        yield "|".join(
            (node.op, node.name, _target(graph_module, node), text((node.args, node.kwargs)), *_places(node))
        )
    yield backend_text(backend)
    yield from settings_text()
    yield package_digest()
    yield repr((torch.__version__, torch.version.git_version, sys.version, *processor(), compilers()))


def _target(graph_module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "get_attr":
        value = getattr(graph_module, str(node.target), None)
        return f"{node.target} {tensor_text(value)}"
    if node.op == "call_function":
        return _function(node.target)
    if node.op in ("placeholder", "output", "call_method"):
        return str(node.target)
    raise NoKey(f"the graph calls the module {node.target}")


def _function(target: Any) -> str:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        name = str(target)
        if name.partition(".")[0].partition("::")[0] in OF_TORCH:
            return name
        raise NoKey(f"the operator {name} is not torch's")
    module = getattr(target, "__module__", None) or getattr(getattr(target, "__objclass__", None), "__module__", "")
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", "")
    if "<" in name and getattr(sys.modules.get(module), target.__name__, None) is target:
        name = target.__name__  # made within another function and named by its module: torch.nn.functional.max_pool2d
    if module.partition(".")[0] not in MODULES or not name or "<" in name:
        raise NoKey(f"the function {module}.{name} is not torch's")
    if module.startswith("torch._higher_order_ops"):
        raise NoKey(f"{name} calls graphs of its own")
    return f"{module}.{name}"


def _places(node: fx.Node) -> Iterator[str]:
    for name in PLACES:
        found = node.meta.get(name)
        yield "" if found is None else str(found) if isinstance(found, str) else _modules(found)


def _modules(stack: Mapping[str, Any]) -> str:
    """The keys of the stack are addresses in this process."""
    return repr(
        [(path, getattr(kind, "__module__", ""), getattr(kind, "__qualname__", kind)) for path, kind in stack.values()]
    )


def tensor_text(value: Any) -> str:
    """The form of a plain tensor on the CPU, without its values; NoKey for anything else."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or value.layout is not torch.strided:
        raise NoKey(f"a {type(value).__name__}")
    if value.device.type != "cpu" or not all(type(n) is int for n in value.shape):
        raise NoKey(f"a tensor on {value.device} or of unknown size")
    form = value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad
    return repr((*form, value.is_inference(), value.is_conj(), value.is_neg()))


def text(value: Any) -> str:
    """NoKey for what has no content that could be read."""
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, (tuple, list, set, frozenset)):
        parts = [text(part) for part in value]
        return f"{type(value).__name__}({', '.join(sorted(parts) if isinstance(value, (set, frozenset)) else parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{text(key)}: {text(part)}' for key, part in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{text((value.start, value.stop, value.step))}"
    if type(value) is float:
        return value.hex()
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, type) or callable(value):
        raise NoKey(f"{value!r} is code")
    return _words(value)


def _words(value: Any) -> str:
    """Of a frozen value of this package's, or of an extension's: its type and what it prints."""
    words = f"{type(value).__module__}.{type(value).__qualname__} {value!r}"
    if " at 0x" in words:
        raise NoKey(f"nothing says what {type(value).__qualname__} holds")
    return words


def backend_text(backend: Backend) -> str:
    """The target, the mode, the options of both compilers, the passes with their sources."""
    passes = [(label, one) for pipeline in (backend.pre, backend.post) for label, one in pipeline.passes]
    described = [
        (label, _words(one), _source(type(one)), [_content(f) for f in one.source_files()]) for label, one in passes
    ]
    checks = backend.pre.check, backend.post.check
    chosen = _words(backend.target), _words(backend.options), sorted(map(repr, backend.inductor.settings().items()))
    own = backend.mode, backend.inductor.replays, backend.partial, backend.strict
    return repr((_source(type(backend.target)), described, checks, chosen, own))


def settings_text() -> Iterator[str]:
    """Of torch, in this process and on this thread."""
    if torch._C._is_any_autocast_enabled() or torch.is_grad_enabled():
        raise NoKey("autocast or gradients are on")
    yield state_text()
    for settings in (inductor_config, functorch_config):
        copied: Any = getattr(settings, "get_config_copy", None) or settings.shallow_copy_dict  # type: ignore[attr-defined]
        yield text(dict(sorted(copied().items())))


def state_text() -> str:
    """What of torch's state decides which code is made, whoever makes it."""
    deterministic: Any = torch.utils.deterministic
    flags: dict[str, Any] = {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), thread_settings()),
        "dtype": (torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory),
        "inference": torch.is_inference_mode_enabled(),
        "mkldnn": (
            torch.backends.mkldnn.enabled,
            torch.backends.mkldnn.deterministic,
            torch.backends.mkldnn.allow_tf32,
        ),
        "sdp": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
    }
    return text(flags)


@functools.cache
def package_digest() -> str:
    """Of the sources of the core and of this package."""
    found = hashlib.sha256()
    for package in PACKAGES:
        files = sorted(file for kind in ("*.py", "*.cpp", "*.h", "*.json", "*.yaml") for file in package.rglob(kind))
        for file in files:
            found.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _source(kind: type) -> str:
    """Of the module that a class is defined in; this package's own are part of its digest."""
    if kind.__module__.partition(".")[0] in OURS:
        return ""
    file = inspect.getsourcefile(kind)
    if file is None:
        raise NoKey(f"{kind.__qualname__} has no source")
    return _content(file)


def _content(file: str) -> str:
    try:
        return f"{file} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
    except OSError as error:
        raise NoKey(f"{file} cannot be read: {error}") from None
