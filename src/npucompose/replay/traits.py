"""What an operator's schema and tags say, read once for each operator: a capture asks for every node of a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch._ops import OpOverload

from npucompose.graphs.recordable import RESIZING, is_unsafe

aten = torch.ops.aten

_UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_MARKERS = frozenset({"scope_enter", "scope_exit", "record", "wait"})


@frozen(kw_only=True, eq=False)
class Traits:
    op: OpOverload
    of_torch: bool
    """One of torch's own, whose tags can be believed. Operators of others may count, read clocks or talk."""
    may_be_tried: bool
    """A second call, to compare two ways of computing, does no harm: of torch's operators and of our references."""
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    tensors: tuple[int, ...]
    """Arguments that are declared as one tensor, for which a number may stand."""
    written: tuple[int, ...]
    """Arguments that it writes."""
    mutable: bool
    resizes: bool
    """It moves a tensor to other memory."""
    draws: bool
    """It is tagged to draw random numbers."""
    takes_generator: bool
    uninitialised: bool
    """`aten.empty` and its like: memory without a value."""
    is_as_strided: bool
    marks: bool
    """A marker of a stream plan, not a kernel."""
    may_be_constant: bool
    """Whether equal arguments give equal results."""
    is_plain: bool
    """There is nothing to look at before it runs: it writes, draws from and refuses nothing."""
    may_depend_on_data: bool
    """A tag says that its result's shape, or a number, may depend on data, or that it must run each time; or it writes
    what it does not declare."""
    out: int | None
    """The one argument that a pointwise kernel with an in-place form writes its result into; None for every other."""

    def in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in the order of the schema, defaults filled in."""
        if not kwargs:
            return (*args, *self.defaults[len(args) :])
        given = len(args)
        rest = zip(self.names[given:], self.defaults[given:], strict=True)
        return (*args, *(kwargs.get(name, default) for name, default in rest))


@functools.cache
def traits_of(op: OpOverload) -> Traits:
    schema, declared = op._schema, op._schema.arguments
    name = schema.name.split("::")[1]
    tags = op.tags
    of_torch, mutable = op.namespace in ("aten", "prims"), schema.is_mutable
    draws = torch.Tag.nondeterministic_seeded in tags
    uninitialised = op.namespace == "aten" and name in _UNINITIALISED
    takes_generator = any("Generator" in str(a.type) for a in declared)
    may_depend_on_data = (
        torch.Tag.data_dependent_output in tags
        or torch.Tag.dynamic_output_shape in tags
        or op is aten.native_batch_norm.default
        or is_unsafe(op)
    )
    return Traits(
        op=op,
        of_torch=of_torch,
        may_be_tried=of_torch or op.namespace in ("npu", "air"),
        names=tuple(a.name for a in declared),
        defaults=tuple(a.default_value for a in declared),
        tensors=tuple(i for i, a in enumerate(declared) if str(a.type) == "Tensor"),
        written=tuple(i for i, a in enumerate(declared) if a.alias_info is not None and a.alias_info.is_write),
        mutable=mutable,
        resizes=mutable and name in RESIZING,
        draws=draws,
        takes_generator=takes_generator,
        uninitialised=uninitialised,
        is_as_strided=schema.name.startswith("aten::as_strided"),
        marks=op.namespace == "air" and name in _MARKERS,
        may_be_constant=of_torch and not (mutable or draws or uninitialised),
        is_plain=not (mutable or takes_generator or may_depend_on_data),
        may_depend_on_data=may_depend_on_data,
        out=_pointwise_out(op),
    )


def _pointwise_out(op: OpOverload) -> int | None:
    outs = [i for i, argument in enumerate(op._schema.arguments) if argument.is_out]
    if len(outs) != 1 or torch.Tag.pointwise not in op.tags:
        return None
    namespace, _, name = op._schema.name.partition("::")
    return outs[0] if hasattr(getattr(torch.ops, namespace), f"{name}_") else None
