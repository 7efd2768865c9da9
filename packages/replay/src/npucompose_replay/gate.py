"""The gate before every capture and replay: which tensors, threads and operators a recording can take, and why not.

A recording works on bare addresses. So a tensor is taken only when it is what it says: plain, dense, on the recording's
device, seen by nobody on its way to a kernel, over memory that is there. All else is refused, with the reason.

executor/src/gate.h is the same for the replayer in C++, which asks there; here are the words for both, and the gate
of replayers that need no compiler.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from npucompose.errors import CaptureError
from npucompose.graphs.matching import source_line
from npucompose.graphs.recordable import HIGHER_ORDER, TO_PYTHON, why_dependent
from npucompose.machine import gc_paused
from npucompose_replay.operands import flat

_Key: Any = torch._C.DispatchKey
_Keys: Any = torch._C.DispatchKeySet
_keys_of: Any = torch._C._dispatch_keys
_asked_for: Any = torch._C._dispatch_tls_local_include_set
TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
"""A subclass may answer for itself whatever it is asked."""


def _set_of(*names: str) -> Any:
    return functools.reduce(lambda made, name: made | _Keys(getattr(_Key, name)), names, _Keys(_Key.Undefined))


_USE = _set_of(
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradOther",
    "ADInplaceOrView",
    "AutocastCPU",
    "AutocastCUDA",
    "PythonTLSSnapshot",
)
"""How a tensor is used, not what it is."""
_LAZY = _set_of("Conjugate", "Negative")
"""A sign that kernels put in when they read; whether it is there belongs to the signature."""
_USUAL = _set_of("BackendSelect", "ADInplaceOrView")
"""What every thread asks for."""


def why_not(value: torch.Tensor, device: str = "cpu", *, subclasses: bool = False) -> str:
    """What is wrong with an input, in words that go on from its name: "is a FakeTensor, a subclass of Tensor …".

    '' for a plain tensor, one with a lazy conj or neg bit among them. Asks a subclass nothing. With `subclasses` those
    are plain too that leave operators to torch: a front in Python can take them.
    """
    return why_not_plain(value, device, subclasses=subclasses) or why_no_memory(value)


def are_plain(tensors: Iterable[torch.Tensor]) -> bool:
    """A quick yes for tensors on a CPU, whatever their memory is; its no means only "look closely"."""
    return all(type(t) in TYPES and _keys_of(t).raw_repr() in _KNOWN for t in tensors)


def why_not_plain(value: torch.Tensor, device: str = "cpu", *, subclasses: bool = False) -> str:
    """The same, but for its memory."""
    kind = type(value)
    odd = _keys_of(value) - _USE - _LAZY
    if kind not in TYPES and (odd.has(_Key.Python) or not subclasses):
        return f"is a {kind.__name__}, a subclass of Tensor; only plain tensors are taken"
    if odd.raw_repr() == _plain(device):
        return ""
    name = torch._C._dispatch_key_name(odd.highestPriorityTypeId())
    if odd.has(_Key.Python):
        return "is dispatched to Python; only plain tensors are taken"
    if odd.has(_Key.NestedTensorCPU) or odd.has(_Key.NestedTensorCUDA):
        return "is a nested tensor; only dense ones are taken"
    if value.device.type != device:
        return f"is on {value.device}; only tensors on {device} are taken"
    if value.layout is not torch.strided or value.is_quantized:
        return f"has layout {value.layout}, dtype {value.dtype}; only dense tensors are taken"
    return f"is wrapped for {name}; only plain tensors are taken"


def why_not_anywhere(value: torch.Tensor) -> str:
    """`why_not` for whatever device the tensor is on; '' also for subclasses that leave operators to torch."""
    if why := why_not_plain(value, "cpu", subclasses=True):
        if _keys_of(value).has(_Key.Python) or value.device.type == "cpu":
            return why
        if why := why_not_plain(value, value.device.type, subclasses=True):
            return why
    return why_no_memory(value)


def why_no_memory(value: torch.Tensor) -> str:
    """For a tensor that is plain: whether its storage holds every element."""
    numel = value.numel()
    if not numel:
        return ""
    reach = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1
    needed = (value.storage_offset() + reach) * value.element_size()
    storage = value.untyped_storage()
    held = storage.nbytes()
    if held < needed:
        return f"has {held} bytes of memory where it needs {needed}: it was freed or cut short"
    return "" if has_memory(storage) else "has no memory"


def has_memory(storage: torch.UntypedStorage) -> bool:
    try:
        return storage.data_ptr() != 0
    except RuntimeError:  # torch refuses to say that it is 0
        return False


def why_not_here() -> str:
    """What on this thread wants to see every operator, which a replay would keep from it; '' for nothing.

    "under FakeTensorMode", or "under a transform of torch.func (FuncTorchDynamicLayerFrontMode)".
    """
    asked = _asked_for() - _USUAL
    if not asked.raw_repr():
        return ""
    modes = _get_current_dispatch_mode_stack()
    if modes:
        return f"under {', '.join(type(mode).__name__ for mode in modes)}"
    name = torch._C._dispatch_key_name(asked.highestPriorityTypeId())
    return "under torch.jit.trace" if name == "Tracer" else f"under a transform of torch.func ({name})"


def has_onlookers() -> bool:
    """The same, but for AOTAutograd's own mode around the first call of what it compiled."""
    if not why_not_here():
        return False
    modes = _get_current_dispatch_mode_stack()
    return not modes or not all(type(mode).__module__.startswith("torch._functorch.") for mode in modes)


def first_refused(inputs: Sequence[Any], device: str = "cpu", *, subclasses: bool = False) -> tuple[int, str] | None:
    """(the first input that may not come in, why)."""
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and (why := why_not(value, device, subclasses=subclasses)):
            return index, why
    return None


def _known() -> frozenset[int]:
    x = torch.zeros(1)
    with torch.inference_mode():
        y = torch.zeros(1)
    return frozenset(_keys_of(t).raw_repr() for t in (x, y))


_KNOWN = _known()


@functools.cache
def _plain(device: str) -> int:
    return _Keys(torch._C._dispatch_key_parse(torch._C._dispatch_key_for_device(device))).raw_repr()


_METADATA = frozenset({"is_same_size", "size", "stride", "numel", "dim", "storage_offset", "is_contiguous"})
"""Operators that answer with a number that only the signature decides."""


NOT_RUN: Any = object()


class Refused(CaptureError):
    """A node that a recording cannot hold, or an input: then `index` says which, and `node` is None. With neither the
    whole call is what cannot be recorded, for its size."""

    def __init__(self, words: str, *, reason: str = "", node: fx.Node | None = None, index: int = -1) -> None:
        super().__init__(words)
        self.reason, self.node, self.index = reason, node, index
        self.result: Any = NOT_RUN
        """What the node gave, where it had run before it was refused: it does not run a second time."""
        self.outputs: list[Any] | None = None
        """What the whole graph gave, where the run was finished without a recording."""

    def __reduce__(self) -> tuple[type[CaptureError], tuple[str]]:
        return CaptureError, (str(self),)


def refused(node: fx.Node, reason: str) -> Refused:
    """`cannot capture aten.nonzero.default: … model.py:12: idx = mask.nonzero()` (without the line when unknown)."""
    words = f"cannot capture {node.target} (node '{node.name}'): {reason} {source_line(node)}".rstrip()
    return Refused(words, reason=reason, node=node)


def check_operator(node: fx.Node, op: OpOverload, args: Any, kwargs: Any) -> None:
    """Raise CaptureError when the result of `op` depends on data in a way that a recording cannot follow.

    `args` and `kwargs` are the real values.
    """
    if op is torch.ops.aten.native_batch_norm.default and args[3] is not None and args[5]:
        raise refused(
            node, "it writes its running statistics without saying so; AOTAutograd replaces it by one that does."
        )
    if reason := why_dependent(op, args, kwargs):
        raise refused(node, reason)


def checked(node: fx.Node, op: OpOverload, returned: Any, reads_tensors: bool) -> list[torch.Tensor]:
    """The tensors that `op` returned.

    Raises CaptureError for one on another device, and for a number that came out of a tensor's data.
    """
    if isinstance(returned, torch.Tensor) and returned.is_cpu and not _is_odd(returned):
        return [returned]
    leaves = flat(returned)
    for result in leaves:
        if isinstance(result, torch.Tensor):
            if result.device.type != "cpu":
                raise refused(node, f"it works on {result.device}; this target captures CPU graphs only.")
            if _is_odd(result):
                raise refused(
                    node, f"its result has layout {result.layout} and dtype {result.dtype}; only dense works."
                )
        elif result is not None and reads_tensors:
            base = op._schema.name.split("::")[1]
            if not (base in _METADATA or base.startswith("sym_")):
                raise refused(node, TO_PYTHON)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def check_target(node: fx.Node) -> None:
    if isinstance(node.target, HigherOrderOperator):
        raise refused(node, HIGHER_ORDER)
    if node.op in ("call_method", "call_module"):
        raise not_a_call(node)


def not_a_call(node: fx.Node) -> CaptureError:
    return refused(node, f"a node '{node.op}' is not an operator; capture takes the graph that AOTAutograd makes.")


def check_input(index: int, value: Any) -> None:
    """Raise Refused for an input that no recording can hold: a symbol, what the gate refuses, a gradient."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _refused_input(index, f"is symbolic ({value}); capture runs on real values")
        return
    if isinstance(value, FakeTensor):
        raise _refused_input(index, "is a FakeTensor; capture takes plain tensors with real data")
    if odd := why_not_plain(value):
        raise _refused_input(index, odd)
    form = f" ({value.dtype}[{','.join(map(str, value.shape))}])"
    if gone := why_no_memory(value):
        raise _refused_input(index, gone, form)
    if value.requires_grad and torch.is_grad_enabled():
        why = "requires grad; capture is for inference: use torch.no_grad() or detach it"
        raise _refused_input(index, why, form)


def _refused_input(index: int, why: str, form: str = "") -> Refused:
    return Refused(f"input {index}{form} {why}.", reason=f"an input of it {why}", index=index)


def reads_freed_memory(refusal: Refused, readers: Iterable[fx.Node], inputs: Sequence[Any]) -> bool:
    """Whether an operator would read an input that has no memory: eager ends the process, or reads others' there."""
    if refusal.index < 0 or refusal.outputs is not None:
        return False
    value, first = inputs[refusal.index], next(iter(readers), None)
    is_freed = isinstance(value, torch.Tensor) and not why_not_plain(value) and bool(why_no_memory(value))
    return is_freed and first is not None and "resize" not in str(first.target)


def _is_odd(tensor: torch.Tensor) -> bool:
    """Not a dense tensor of plain numbers."""
    return tensor.layout is not torch.strided or tensor.is_quantized


@contextlib.contextmanager
def isolated_capture() -> Iterator[Sequence[TorchDispatchMode]]:
    """Yields the dispatch modes that are off inside, the innermost first.

    AOTAutograd puts a mode around the first call of what it compiled; it looks at every operator in Python, which takes
    longer than recording it.
    """
    with (
        gc_paused(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        _disable_current_modes() as modes,
    ):
        yield tuple(mode for mode in modes if mode is not None)


def under(modes: Sequence[TorchDispatchMode], operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`operator(*args, **kwargs)` with these modes on again: others' operators may concern them."""
    with contextlib.ExitStack() as stack:
        for mode in reversed(modes):
            stack.enter_context(mode)
        return operator(*args, **kwargs)
