"""What cannot be captured, and how to say so: the operator, the reason and the line of the model it came from."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from npucompose.errors import CaptureError
from npucompose.graphs.recordable import HIGHER_ORDER, MASK, SHAPE, TO_PYTHON, UNSAFE, is_unsafe
from npucompose.graphs.source import source_line
from npucompose.replay import gate
from npucompose.replay.capture.ledger import flat

_METADATA = frozenset({"is_same_size", "size", "stride", "numel", "dim", "storage_offset", "is_contiguous"})
"""Operators that answer with a number that only the signature decides."""


NOT_RUN: Any = object()


class Refused(CaptureError):
    """A node that a recording cannot hold, or an input: then `index` says which, and `node` is None."""

    def __init__(self, words: str, *, reason: str, node: fx.Node | None = None, index: int = -1) -> None:
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

    `args` and `kwargs` are the real values. The tags are torch's own (native/tags.yaml); index.Tensor carries
    dynamic_output_shape for its masks only.
    """
    if op is torch.ops.aten.native_batch_norm.default and args[3] is not None and args[5]:
        raise refused(
            node, "it writes its running statistics without saying so; AOTAutograd replaces it by one that does."
        )
    if is_unsafe(op):
        raise refused(node, UNSAFE)
    if torch.Tag.data_dependent_output in op.tags:
        raise refused(node, TO_PYTHON)
    if torch.Tag.dynamic_output_shape not in op.tags:
        return
    packet = op.overloadpacket
    if packet is torch.ops.aten.index:
        indices = args[1] if len(args) > 1 else kwargs["indices"]
        if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return
        raise refused(node, MASK)
    if packet is torch.ops.aten.repeat_interleave and kwargs.get("output_size") is not None:
        return
    raise refused(node, SHAPE)


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
    """Raise CaptureError for an input that no recording can hold: a symbol, what the gate refuses, a gradient."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(f"input {index} is symbolic ({value}); capture runs on real values.")
        return
    if isinstance(value, FakeTensor):
        raise CaptureError(f"input {index} is a FakeTensor; capture takes plain tensors with real data.")
    if odd := gate.why_not_plain(value):
        raise Refused(f"input {index} {odd}.", reason=f"an input of it {odd}", index=index)
    where = f"input {index} ({value.dtype}[{','.join(map(str, value.shape))}])"
    if gone := gate.why_no_memory(value):
        raise CaptureError(f"{where} {gone}.")
    if value.requires_grad and torch.is_grad_enabled():
        raise CaptureError(f"{where} requires grad; capture is for inference: use torch.no_grad() or detach it.")


def _is_odd(tensor: torch.Tensor) -> bool:
    """Not a dense tensor of plain numbers."""
    return tensor.layout is not torch.strided or tensor.is_quantized
