"""What one FX node does to memory, to random numbers and to the world, read from its operator's schema.

Whatever has no schema (a higher order operator, a Python function on tensors, a submodule) is *opaque*: it is taken
to write every tensor it is given, to draw random numbers and to have side effects.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch.fx.node import _side_effectful_functions

from npucompose.graphs.scopes import NAMESPACES, control

HOST_CHECKS = frozenset(
    ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
)
"""Operators that look at sizes on the host and start no kernel."""

MAYBE_COPIES = frozenset(("reshape", "reshape_as", "contiguous", "flatten", "ravel", "to"))
"""Operators whose schema says view and which copy when they must; only the fake values tell."""

COLLECTIVES = frozenset(("_c10d_functional", "c10d_functional", "c10d"))
"""Namespaces of communication: all ranks must issue it in the same order."""

_CONTROL_SPACES = tuple(f"{space}::" for space in NAMESPACES)
_HOST_MODULES = frozenset((operator.__name__, "_operator", math.__name__, "builtins", "torch"))


@frozen
class OpFacts:
    """What a schema says of an operator, worked out once for each overload."""

    view: bool
    """Its result is memory of its inputs, or may be (`may_copy`)."""
    may_copy: bool
    writes: tuple[tuple[int, str], ...]
    """(position, name) of the arguments that are written."""
    random: bool
    effect: bool
    """Returns nothing, communicates, or torch knows it to have a side effect."""
    host: bool
    """Reads sizes or checks them; starts no kernel."""
    changes_metadata: bool
    """In place on shape or strides (`t_`, `resize_`): an identity view is no identity beside it."""
    collective: bool
    makes_only: bool
    """It starts a kernel that reads its inputs, makes new memory, and does nothing else."""


@cache
def facts(op: torch._ops.OpOverload) -> OpFacts:
    schema = op._schema
    written = [
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    name = schema.name.partition("::")[2]
    aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
    view = not written and (any(not info.is_write for info in aliases) or name == "_unsafe_view")
    random = torch.Tag.nondeterministic_seeded in op.tags
    collective = op.namespace in COLLECTIVES
    effect = (not schema.returns and not written) or op in _side_effectful_functions or collective
    host = name.startswith("sym_") or name in HOST_CHECKS
    return OpFacts(
        view=view,
        may_copy=name in MAYBE_COPIES,
        writes=tuple(written),
        random=random,
        effect=effect,
        host=host,
        changes_metadata=torch.Tag.inplace_view in op.tags,
        collective=collective,
        makes_only=not (view or written or random or effect or host or schema.name.startswith(_CONTROL_SPACES)),
    )


def op_facts(node: fx.Node) -> OpFacts | None:
    return facts(node.target) if isinstance(node.target, torch._ops.OpOverload) else None


def leaves_in(value: Any) -> Iterator[Any]:
    """What nested arguments or results hold, in order, repeated as often as it is written."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves_in(item)
    elif isinstance(value, slice):
        yield from leaves_in((value.start, value.stop, value.step))
    else:
        yield value


def nodes_in(value: Any) -> Iterator[fx.Node]:
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, fx.Node))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, torch.Tensor))


def holds_tensor(value: Any) -> bool:
    return next(tensors_in(value), None) is not None


def is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def is_host(node: fx.Node) -> bool:
    """No tensor is computed: inputs, constants, arithmetic on sizes, checks of sizes, the output."""
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    found = op_facts(node)
    if found is not None:
        return found.host
    # The name of a method or a submodule, and an operator of higher order, are of no such module.
    if is_getitem(node) or getattr(node.target, "__module__", None) not in _HOST_MODULES:
        return False
    return not holds_tensor(node.meta.get("val")) and not any(_is_tensor(arg) for arg in node.all_input_nodes)


def _is_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return value is None or holds_tensor(value)


def is_opaque(node: fx.Node) -> bool:
    """Nothing is known of it, so everything is feared."""
    return op_facts(node) is None and not is_host(node) and not is_getitem(node)


def written_by(node: fx.Node) -> tuple[fx.Node, ...]:
    """The arguments of `node` whose memory it changes: `copy_(x, y)` writes x."""
    found = op_facts(node)
    if found is None:
        return tuple(node.all_input_nodes) if is_opaque(node) else ()
    if not found.writes:
        return ()
    given = [node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in found.writes]
    return tuple(dict.fromkeys(nodes_in(given)))


def is_random(node: fx.Node) -> bool:
    """Draws from a generator: its place among the other drawers decides its numbers."""
    found = op_facts(node)
    return found.random if found is not None else is_opaque(node)


def has_effect(node: fx.Node) -> bool:
    """Something besides its result matters: a check, a print, a stream scope, a collective, the unknown."""
    found = op_facts(node)
    if found is None:
        return is_opaque(node)
    return found.effect or control(node) is not None


def is_removable(node: fx.Node) -> bool:
    """Nobody notices when it is gone, once nobody reads its result."""
    if node.op in ("placeholder", "output", "call_module", "call_method"):
        return False
    if node.op == "get_attr":
        return True
    if node.meta.get("unbacked_bindings"):
        return False  # other nodes' shapes are written in the symbol that is born here
    return not (has_effect(node) or is_random(node) or written_by(node) or node.is_impure())


def is_collective(node: fx.Node) -> bool:
    found = op_facts(node)
    return found is not None and found.collective
