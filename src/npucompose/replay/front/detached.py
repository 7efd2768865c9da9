"""A captured call without torch.compile around it: no guards, no wrapper, only the checks a replay needs.

torch.compile's front costs 30 to 500 µs a call; this one a few. What it gives up: most of what Dynamo would notice
beside the call's arguments. Changed globals or module flags, and side effects that the model has in Python beside its
result, go unnoticed. Parameters changed *in place* are seen; a parameter or buffer of a module that was replaced, and
another autocast, grad or inference mode than the handle was made in, are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from npucompose.errors import CaptureError, SignatureError
from npucompose.models.nested import tensors_of
from npucompose.replay import gate
from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.executor.native import Call
from npucompose.replay.memory.buffers import laid_over, relative
from npucompose.replay.memory.inputs import same_number, signature
from npucompose.replay.watching import watching

_grad_is_enabled = torch.is_grad_enabled
Outputs = Literal["reuse", "keep"]
"""What the next call of a handle does to results of earlier ones that are still held."""
Entry = tuple[dict[str, Any], str, torch.Tensor]
"""(the dict in which a module keeps a parameter or buffer, its name, the tensor)."""
_PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device)


class DetachError(CaptureError):
    """A call that cannot be taken out of torch.compile: the text says what could not be mapped."""


class Replayable(Protocol):
    """A recording."""

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]: ...


class DetachedHandle:
    """`handle(*args, **kwargs)` is the call it was made of, for arguments of the same structure, shapes and numbers.

    Raises SignatureError for others, for another autocast, grad or inference mode, and where a module's parameter or
    buffer was replaced by another. Results lie in the recording's buffers: with `outputs="reuse"` the next call
    overwrites them, and warns once when it overwrites one that is still held; with "keep" it leaves them alone.
    """

    def __init__(
        self,
        captured: Replayable,
        held: list[Any],
        arguments: _Arguments,
        results: _Results,
        taken: list[tuple[int, int]],
        entries: list[Entry],
        outputs: Outputs,
    ) -> None:
        """`entries`: where modules keep the tensors that are `held`."""
        self.captured = captured
        self.outputs: Outputs = outputs
        self._mode = call_mode()
        self._entries = entries
        self._held = held
        """Every input of the graph; those that come from arguments are None."""
        self._arguments = arguments
        self._results = results
        self._taken = taken
        self._replay = functools.partial(captured.replay, reuse=True) if outputs == "reuse" else captured.replay
        self._bare_count = arguments.bare_count
        self._held_wants_grad = any(isinstance(t, torch.Tensor) and t.requires_grad for t in held)
        self._call: Call | None = None
        """For a tuple of arguments that are tensors and inputs of the graph, each and in order."""
        self._call_with_leaves: Call | None = None
        """For a tuple of the tensors that `flatten` found in other arguments: keywords, lists, constants."""
        if results.shape is not None and isinstance(captured, CapturedGraph):
            reuse = outputs == "reuse"
            if self._bare_count >= 0:
                self._call = captured.caller(held, taken, results.shape, entries, reuse)
            else:
                in_order = [(index, n) for n, (index, _) in enumerate(taken)]
                self._call_with_leaves = captured.caller(held, in_order, results.shape, entries, reuse)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Every call goes through here: a microsecond of Python is a large part of a small model.
        if self._call is not None and not kwargs:
            result = self._call(args)
            if result is not None:
                return result
        bare = len(args) == self._bare_count and not kwargs
        leaves = args if bare else self._arguments.flatten(args, kwargs)
        if self._call_with_leaves is not None:
            result = self._call_with_leaves(tuple([leaves[leaf] for _, leaf in self._taken]))
            if result is not None:
                return result
        self._check_mode()
        inputs = self._held.copy()
        for index, leaf in self._taken:
            inputs[index] = leaves[leaf]
        if _grad_is_enabled() and (self._held_wants_grad or _any_wants_grad(leaves)):
            raise SignatureError(
                "this call was captured for inference, and its tensors require grad: use torch.no_grad()."
            )
        try:
            outputs = self._replay(*inputs)
        except SignatureError as error:
            raise self._of_arguments(error) from None
        return self._results.build(outputs, leaves)

    def _of_arguments(self, error: SignatureError) -> SignatureError:
        """The same about the argument that the input is, where it is one."""
        leaf = next((leaf for index, leaf in self._taken if index == error.index), None)
        return error if leaf is None else SignatureError(f"argument {leaf} {error.why}")

    def _check_mode(self) -> None:
        now = call_mode()
        if now != self._mode:
            name = next(name for name, value in self._mode.items() if now[name] != value)
            raise SignatureError(
                f"this call was captured with {name}={self._mode[name]} and is made with {name}={now[name]}."
            )
        for owner, name, tensor in self._entries:
            if owner.get(name) is not tensor:
                given = owner.get(name)
                what = "is gone" if given is None else f"is another tensor now ({_described(given)})"
                raise SignatureError(
                    f"this call was captured with a parameter or buffer '{name}' ({_described(tensor)}) that {what}: "
                    "change it in place, or detach again."
                )

    def inputs_of(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the recording is replayed with for these arguments: they and what is held, parameters above all."""
        leaves, inputs = self._arguments.flatten(args, kwargs), self._held.copy()
        for index, leaf in self._taken:
            inputs[index] = leaves[leaf]
        return inputs


def detach(
    captured: Replayable,
    flat_inputs: list[Any],
    flat_outputs: Sequence[Any],
    call_args: tuple[Any, ...],
    call_kwargs: dict[str, Any],
    result: Any,
    *,
    modules: Iterable[nn.Module] = (),
    outputs: Outputs = "reuse",
) -> DetachedHandle:
    """Make a handle right after a call through torch.compile that ran `captured` on `flat_inputs` and gave `result`.

    `flat_outputs` are what the graph returned. `modules` are looked after: the handle refuses a call after one of their
    parameters or buffers was replaced.

    Leaves of the arguments are found among the graph's inputs, and the result's leaves among its outputs, by identity;
    views by their memory. Raises DetachError when something has no place: AOTAutograd's wrapper does work of its own.
    """
    leaves, spec = tree_flatten((call_args, call_kwargs))
    taken, same = _taken(flat_inputs, leaves)
    held = list(flat_inputs)
    for index, _ in taken:
        held[index] = None
    checks = [(k, leaf) for k, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
    for k, leaf in checks:
        if any(True for _ in tensors_of(leaf)):
            raise DetachError(
                f"argument {k} is a {type(leaf).__name__} that holds tensors: a handle sees tensors in lists, tuples, "
                "dicts and classes that are registered with torch.utils._pytree, and could not follow these."
            )
    used = {leaf for _, leaf in taken} | {second for _, second in same}
    unused = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and k not in used]
    for k, leaf in unused:
        if any(_shares(leaf, given) for given in flat_inputs):
            raise DetachError(
                f"argument {k} is no input of the graph but shares memory with one: AOTAutograd gave the graph a "
                "common base of arguments that overlap. Pass tensors that do not overlap."
            )
    arguments = _Arguments(call_args, call_kwargs, spec, checks, same, [(k, _described(leaf)) for k, leaf in unused])
    results = _Results(flat_outputs, flat_inputs, dict(taken), result)
    return DetachedHandle(captured, held, arguments, results, taken, _entries(modules, held), outputs)


def detach_call(
    call: Callable[[], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    modules: Iterable[nn.Module] = (),
    outputs: Outputs = "reuse",
) -> DetachedHandle:
    """Make the call (through torch.compile, with these arguments) and a handle of it.

    Raises DetachError when the call ran none or several graphs, or ran one without a recording.
    """
    with watching() as seen:
        result = call()
    if cut := next((one.cut for one in seen if one.cut), ""):
        raise DetachError(f"this call runs a graph that is cut: {cut}; only a call of one recording can be detached.")
    if len(seen) != 1:
        raise DetachError(f"this call ran {len(seen)} compiled graphs; only a call of exactly one can be detached.")
    (one,) = seen
    if one.recording is None:
        raise DetachError("this call ran without a recording: capture_limit is reached.")
    return detach(one.recording, one.inputs, one.outputs, args, kwargs, result, modules=modules, outputs=outputs)


def call_mode() -> dict[str, Any]:
    """What of a thread's modes decides what torch.compile makes of a call."""
    autocast = {
        f"torch.autocast({device!r})": torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    }
    return {
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        **autocast,
    }


def modules_of(model: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a callable is, belongs to, closes over or names as a global, and all within them."""
    inner = getattr(model, "__func__", model)
    code, closed = getattr(inner, "__code__", None), getattr(inner, "__closure__", None) or ()
    names = code.co_names if code is not None else ()
    found = [model, getattr(model, "__self__", None), *(_content(cell) for cell in closed)]
    found += [getattr(inner, "__globals__", {}).get(name) for name in names]
    modules = [module for one in found if isinstance(one, nn.Module) for module in one.modules()]
    return list({id(module): module for module in modules}.values())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return None


def _entries(modules: Iterable[nn.Module], held: Sequence[Any]) -> list[Entry]:
    wanted = {id(value) for value in held if isinstance(value, torch.Tensor)}
    kept = (owner for module in modules for owner in (module._parameters, module._buffers))
    return [(owner, name, t) for owner in kept for name, t in owner.items() if t is not None and id(t) in wanted]


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
    if not all(isinstance(t, torch.Tensor) and not gate.why_not_anywhere(t) and t.numel() for t in (a, b)):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _are_the_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _any_wants_grad(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _described(value: Any) -> str:
    return signature([value])[0] if isinstance(value, torch.Tensor) else repr(value)
