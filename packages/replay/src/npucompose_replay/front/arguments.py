"""Where a detached call finds each input of its graph among arguments, each leaf of its result among outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from npucompose.errors import CaptureError, SignatureError
from npucompose_replay import gate
from npucompose_replay.memory.inputs import same_number, signature
from npucompose_replay.operands import laid_over, relative


class DetachError(CaptureError):
    """A call that cannot be taken out of torch.compile: the text says what could not be mapped."""


_OPAQUE: Any = getattr(torch._library, "opaque_object", None)
"""Where torch (2.10 and later) knows the classes whose values are arguments of operators."""


LONGEST_SHAPE = 200
"""Characters of a structure of arguments in an error."""
_PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device)


class _Arguments:
    """Leaves of a call's arguments; arguments that are leaves or lists of leaves need no pytree."""

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        spec: TreeSpec,
        checks: list[tuple[int, Any]],
        same: list[tuple[int, int]],
        unused: list[tuple[int, Any]],
    ) -> None:
        self._spec = spec
        self._checks = [(k, value, _is_plain(value)) for k, value in checks]
        self._same = same
        self._unused = unused
        self._names = tuple(kwargs)
        self._count = len(args)
        values = (*args, *kwargs.values())
        flat, _ = tree_flatten((args, kwargs))
        self._rows = [(type(v), len(v)) if type(v) in (list, tuple) else None for v in values]
        """Of each argument: a plain list or tuple of so many leaves, or a leaf."""
        unrolled = [leaf for v, row in zip(values, self._rows, strict=True) for leaf in (v if row else (v,))]
        self._deep = not _are_the_same(flat, unrolled)
        self._unroll = any(self._rows)
        self.bare_count = -1 if self._names or self._deep or self._unroll or checks or same or unused else len(args)
        """So many positional arguments, all tensors and inputs of the graph, need no look here. -1: this needs one."""

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        leaves = self._tree(args, kwargs) if self._deep else self._row(args, kwargs)
        if self._unroll and not self._deep:
            leaves = self._unrolled(leaves)
        for k, value, plain in self._checks:
            given = leaves[k]
            if given is not value and not (plain and same_number(given, value)):
                raise SignatureError(f"captured for {value!r} as argument {k}, got {given!r}")
        for a, b in self._same:
            if leaves[a] is not leaves[b]:
                raise SignatureError(f"captured for one tensor as arguments {a} and {b}, got two")
        for k, form in self._unused:
            if _described(leaves[k]) != form:
                raise SignatureError(f"captured for {form} as argument {k}, got {_described(leaves[k])}")
        return leaves

    def _row(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if (
            len(args) != self._count
            or len(kwargs) != len(self._names)
            or any(name not in kwargs for name in self._names)
        ):
            raise SignatureError(
                f"captured for {self._count} positional arguments and the keywords {self._names}, "
                f"got {len(args)} and {tuple(kwargs)}"
            )
        return [*args, *(kwargs[name] for name in self._names)] if kwargs else list(args)

    def _unrolled(self, values: list[Any]) -> list[Any]:
        """Leaves of lists of numbers and the like, without pytree: it takes ten times as long as the rest."""
        leaves: list[Any] = []
        for value, row in zip(values, self._rows, strict=True):
            if row is None:
                leaves.append(value)
            elif (type(value), len(value) if isinstance(value, (list, tuple)) else -1) == row:
                leaves += value
            else:
                raise SignatureError(f"captured for a {row[0].__name__} of {row[1]}, got {value!r}")
        return leaves

    def _tree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self._spec:
            raise SignatureError(f"captured for arguments of structure {_shape_of(self._spec)}, got {_shape_of(spec)}")
        return leaves


def _is_plain(value: Any) -> bool:
    """Whether another object that is equal stands for the same: a number, a text, what torch has as an opaque value."""
    return isinstance(value, _PLAIN) or (_OPAQUE is not None and _OPAQUE.is_opaque_value_type(type(value)))


def _shape_of(spec: TreeSpec) -> str:
    """A structure in no more than a line: objects among the arguments would bring the address of each part."""
    text = re.sub(r"\bat 0x[0-9a-f]+", "", " ".join(str(spec).split()))
    return text if len(text) <= LONGEST_SHAPE else f"{text[:LONGEST_SHAPE]}… ({spec.num_leaves} values)"


Source = Callable[[list[Any], Sequence[Any]], Any]
"""One leaf of the result, from (the graph's outputs, the leaves of the arguments)."""


class _Results:
    def __init__(
        self, outputs: Sequence[Any], flat_inputs: Sequence[Any], leaf_of: dict[int, int], result: Any
    ) -> None:
        leaves, self._spec = tree_flatten(result)
        placed: set[int] = set()
        self._sources = [_source(k, leaf, outputs, flat_inputs, leaf_of, placed) for k, leaf in enumerate(leaves)]
        self._single = isinstance(result, torch.Tensor)
        is_row = type(result) in (tuple, list) and _are_the_same(result, leaves)
        self._row: type[Any] | None = type(result) if is_row else None
        self._is_outputs = is_row and _are_the_same(result, outputs)
        self.shape: type | int | None = self._row if self._is_outputs else None
        """The type of row that all outputs come in, or the number of the only one; None where it is not so simple."""
        if self._single:
            self.shape = next((i for i, output in enumerate(outputs) if output is result), None)
        for k, output in enumerate(outputs):
            mine = any(output is given for given in flat_inputs)
            if isinstance(output, torch.Tensor) and output.numel() and k not in placed and not mine:
                raise DetachError(
                    f"output {k} of the graph is not part of what the call returned: the model changes state outside "
                    "the graph (an attribute, an argument's shape), which a replay alone would leave out."
                )

    def build(self, outputs: list[Any], leaves: Sequence[Any]) -> Any:
        if self._single:
            return self._sources[0](outputs, leaves)
        made = outputs if self._is_outputs else [source(outputs, leaves) for source in self._sources]
        if self._row is not None:
            return made if self._row is list else tuple(made)
        return tree_unflatten(made, self._spec)


def _source(
    k: int, leaf: Any, outputs: Sequence[Any], flat_inputs: Sequence[Any], leaf_of: dict[int, int], placed: set[int]
) -> Source:
    if not isinstance(leaf, torch.Tensor):
        if not isinstance(leaf, _PLAIN):
            raise DetachError(f"leaf {k} of the result is a {type(leaf).__name__}, which may hold tensors of its own.")
        return lambda _outputs, _leaves: leaf
    for index, output in enumerate(outputs):
        if output is leaf:
            placed.add(index)
            return lambda outputs, _leaves: outputs[index]
    for index, given in enumerate(flat_inputs):
        if given is leaf:
            return _input_source(index, given, leaf_of)
    for index, output in enumerate(outputs):
        if isinstance(output, torch.Tensor) and _shares(output, leaf):
            placed.add(index)
            layout = relative(leaf, output)
            return lambda outputs, _leaves: laid_over(outputs[index], layout)
    for index, given in enumerate(flat_inputs):
        if _shares(leaf, given):
            begin, view = _input_source(index, given, leaf_of), relative(leaf, given)
            return lambda outputs, leaves: laid_over(begin(outputs, leaves), view)
    if not leaf.numel():
        return lambda _outputs, _leaves: torch.empty_like(leaf)
    raise DetachError(
        f"leaf {k} of the result ({_described(leaf)}) is neither an output of the graph nor a view of one."
    )


def _input_source(index: int, given: Any, leaf_of: dict[int, int]) -> Source:
    if index in leaf_of:
        leaf = leaf_of[index]
        return lambda _outputs, leaves: leaves[leaf]
    return lambda _outputs, _leaves: given


def _taken(flat_inputs: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """[(graph input, leaf)], and the pairs of leaves that are one tensor."""
    first: dict[int, int] = {}
    same: list[tuple[int, int]] = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in first:
                same.append((first[id(leaf)], k))
            first.setdefault(id(leaf), k)
    taken = [
        (i, first[id(given)])
        for i, given in enumerate(flat_inputs)
        if isinstance(given, torch.Tensor) and id(given) in first
    ]
    known = {leaf for _, leaf in taken}
    # The second name of a tensor is used under its first.
    return taken, [(a, b) for a, b in same if a in known or b in known]


def _shares(a: Any, b: Any) -> bool:
    if not all(isinstance(t, torch.Tensor) and not gate.why_not_anywhere(t) and t.numel() for t in (a, b)):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _are_the_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _described(value: Any) -> str:
    return signature([value])[0] if isinstance(value, torch.Tensor) else repr(value)
