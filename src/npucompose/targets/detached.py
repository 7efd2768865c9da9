"""A captured call without torch.compile around it: no guards, no wrapper, only the checks a replay needs.

torch.compile's front costs 30 to 500 µs a call; this one a few. What it gives up: everything that Dynamo would notice
beside the call's arguments. Parameters that are swapped for others, changed globals or module flags, and side effects
that the model has in Python beside its result go unnoticed. Parameters changed *in place* are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from npucompose.errors import CaptureError, SignatureError
from npucompose.targets.cpu.captured_graph import CapturedGraph
from npucompose.targets.cpu.graph_cache import GraphCache
from npucompose.targets.cpu.inputs import same_number
from npucompose.targets.cpu.memory import laid_over, relative
from npucompose.targets.cpu.native.executor import Call
from npucompose.targets.cpu.plan import Layout

_grad_is_enabled = torch.is_grad_enabled
_PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device)


class DetachError(CaptureError):
    """A call that cannot be taken out of torch.compile: the text says what could not be mapped."""


class Replayable(Protocol):
    """A recording that remembers what its last replay returned."""

    last_outputs: list[Any]

    def replay(self, *inputs: Any) -> list[Any]: ...


class DetachedHandle:
    """`handle(*args, **kwargs)` is the call it was made of, for arguments of the same structure, shapes and numbers.

    Raises SignatureError for others. Results lie in the recording's buffers: the next call overwrites them.
    """

    def __init__(
        self,
        captured: Replayable,
        held: list[Any],
        arguments: _Arguments,
        results: _Results,
        taken: list[tuple[int, int]],
    ) -> None:
        self.captured = captured
        self._held = held
        """Every input of the graph; those that come from arguments are None."""
        self._arguments = arguments
        self._results = results
        self._taken = taken
        self._replay = captured.replay
        self._bare_count = arguments.bare_count
        self._held_wants_grad = any(isinstance(t, torch.Tensor) and t.requires_grad for t in held)
        self._call: Call | None = None
        if self._bare_count >= 0 and results.shape is not None and isinstance(captured, CapturedGraph):
            self._call = captured.caller(held, taken, results.shape)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Every call goes through here: a microsecond of Python is a large part of a small model.
        if self._call is not None and not kwargs:
            result = self._call(args)
            if result is not None:
                return result
        bare = len(args) == self._bare_count and not kwargs
        leaves = args if bare else self._arguments.flatten(args, kwargs)
        inputs = self._held.copy()
        for index, leaf in self._taken:
            inputs[index] = leaves[leaf]
        if _grad_is_enabled() and (self._held_wants_grad or _any_wants_grad(leaves)):
            raise SignatureError(
                "this call was captured for inference, and its tensors require grad: use torch.no_grad()."
            )
        outputs = self._replay(*inputs)
        return self._results.build(outputs, leaves)

    def inputs_of(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the recording is replayed with for these arguments: they and what is held, parameters above all."""
        leaves, inputs = self._arguments.flatten(args, kwargs), self._held.copy()
        for index, leaf in self._taken:
            inputs[index] = leaves[leaf]
        return inputs


def detach(
    captured: Replayable, flat_inputs: list[Any], call_args: tuple[Any, ...], call_kwargs: dict[str, Any], result: Any
) -> DetachedHandle:
    """Make a handle right after a call through torch.compile that ran `captured` on `flat_inputs` and gave `result`.

    Leaves of the arguments are found among the graph's inputs, and the result's leaves among its outputs, by identity;
    views by their memory. Raises DetachError when something has no place: AOTAutograd's wrapper does work of its own.
    """
    leaves, spec = tree_flatten((call_args, call_kwargs))
    taken, same = _taken(flat_inputs, leaves)
    held = list(flat_inputs)
    for index, _ in taken:
        held[index] = None
    checks = [(k, leaf) for k, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
    used = {leaf for _, leaf in taken} | {second for _, second in same}
    unused = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and k not in used]
    for k, leaf in unused:
        if any(_shares(leaf, given) for given in flat_inputs):
            raise DetachError(
                f"argument {k} is no input of the graph but shares memory with one: AOTAutograd gave the graph a "
                "common base of arguments that overlap. Pass tensors that do not overlap."
            )
    arguments = _Arguments(call_args, call_kwargs, spec, checks, same, [(k, _described(leaf)) for k, leaf in unused])
    results = _Results(captured.last_outputs, flat_inputs, dict(taken), result)
    return DetachedHandle(captured, held, arguments, results, taken)


def detach_call(
    lowered: Sequence[Any], call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DetachedHandle:
    """Make the call (through torch.compile, with these arguments) and a handle of it.

    `lowered` are the graphs compiled so far. Raises DetachError when the call ran none or several of them, or ran one
    without a recording.
    """
    seen: list[tuple[GraphCache, list[Any]]] = []
    caches = [graph for graph in lowered if isinstance(graph, GraphCache)]
    for cache in caches:
        cache.observer = lambda cache, inputs: seen.append((cache, inputs))
    try:
        result = call()
    finally:
        for cache in caches:
            cache.observer = None
    if len(seen) != 1:
        raise DetachError(f"this call ran {len(seen)} compiled graphs; only a call of exactly one can be detached.")
    cache, flat_inputs = seen[0]
    if cache.last is None:
        raise DetachError("this call ran without a recording: capture_limit is reached.")
    return detach(cache.last, flat_inputs, args, kwargs, result)


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
        self._checks = checks
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
        for k, value in self._checks:
            given = leaves[k]
            if given is not value and not (isinstance(value, _PLAIN) and same_number(given, value)):
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
            raise SignatureError(f"captured for arguments of structure {self._spec}, got {spec}")
        return leaves


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
        self._is_outputs = type(result) in (tuple, list) and _are_the_same(result, outputs)
        self._row: type[Any] | None = (
            type(result) if type(result) in (tuple, list) and len(result) == len(leaves) else None
        )
        if self._row is not None and not _are_the_same(result, leaves):
            self._row = None
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
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or not (a.numel() and b.numel()):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _are_the_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _any_wants_grad(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _described(value: Any) -> str:
    return f"{Layout.of(value)}@{value.device}" if isinstance(value, torch.Tensor) else repr(value)
