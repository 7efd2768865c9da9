"""A captured call without torch.compile around it: no guards, no wrapper, only the checks a replay needs.

torch.compile's front costs 30 to 500 µs a call; this one a few. What it gives up: most of what Dynamo would notice
beside the call's arguments. Changed globals or module flags, and side effects that the model has in Python beside its
result, go unnoticed. Parameters changed *in place* are seen; a tensor that a module keeps and that was replaced
(`owners`), and another autocast, grad or inference mode than the handle was made in, are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from npucompose.errors import SignatureError
from npucompose.models.inputs import tensors_of
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.native import Call
from npucompose_replay.front.arguments import DetachError, _Arguments, _described, _Results, _shares, _taken
from npucompose_replay.front.owners import Kept, content_of, kept_by, standing
from npucompose_replay.interface import Constants, Recording, watching
from npucompose_replay.state import call_mode, stance_entry

_grad_is_enabled = torch.is_grad_enabled
Outputs = Literal["reuse", "keep"]
"""What the next call of a handle does to results of earlier ones that are still held."""


class DetachedHandle:
    """`handle(*args, **kwargs)` is the call it was made of, for arguments of the same structure, shapes and numbers.

    Raises SignatureError for others, where anything of `replay.state.call_mode` is another, and where a tensor that a
    module keeps was replaced by another. Results lie in the recording's buffers: with `outputs="reuse"` the next call
    overwrites them, and warns once when it overwrites one that is still held; with "keep" it leaves them alone.
    """

    def __init__(
        self,
        captured: Recording,
        held: list[Any],
        arguments: _Arguments,
        results: _Results,
        taken: list[tuple[int, int]],
        kept: Kept,
        outputs: Outputs,
        constants: Constants | None = None,
    ) -> None:
        """`kept`: where modules keep the tensors that are `held`; `constants`: the tensors that the graph holds."""
        self._constants = constants
        self.captured = captured
        self.outputs: Outputs = outputs
        self._mode = call_mode()
        self._entries = entries = kept.entries
        in_dicts = [entry for entry in entries if isinstance(entry[0], dict)]
        self._in_dicts = tuple(zip(*in_dicts, strict=True)) or ((), (), ())
        self._in_cells = [entry for entry in entries if not isinstance(entry[0], dict)]
        self.unwatched = kept.unwatched
        """How many tensors that it holds stand where it does not look: another in their place goes unnoticed."""
        self._held = held
        """Every input of the graph; those that come from arguments are None."""
        self._arguments = arguments
        self._results = results
        self._taken = taken
        self._replay = functools.partial(captured.replay, reuse=True) if outputs == "reuse" else captured.replay
        self._bare_count = arguments.bare_count
        self._held_wants_grad = _any_wants_grad(held)
        self._call: Call | None = None
        """For a tuple of arguments that are tensors and inputs of the graph, each and in order."""
        self._call_with_leaves: Call | None = None
        """For a tuple of the tensors that `flatten` found in other arguments: keywords, lists, constants."""
        weights = None if constants is None else constants.native
        if results.shape is not None and isinstance(captured, CapturedGraph) and (weights or not constants):
            reuse, entries = outputs == "reuse", [*entries, stance_entry()]
            if self._bare_count >= 0:
                self._call = captured.caller(held, taken, results.shape, entries, reuse, weights)
            else:
                in_order = [(index, n) for n, (index, _) in enumerate(taken)]
                self._call_with_leaves = captured.caller(held, in_order, results.shape, entries, reuse, weights)

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
        if self._constants is not None and not self._constants.holds():
            raise SignatureError(
                f"this call was captured with weights as constants, and {self._constants.change()}: detach again, or "
                "compile with inductor.freezing=false, where weights may change in place."
            )
        now = call_mode()
        if now != self._mode:
            name = next(name for name, value in self._mode.items() if now[name] != value)
            raise SignatureError(
                f"this call was captured with {name}={self._mode[name]} and is made with {name}={now[name]}."
            )
        if not self._kept_stand():
            for owner, name, tensor in self._entries:
                if (now := standing(owner, name)) is not tensor:
                    raise SignatureError(_replaced(name, tensor, now))

    def _kept_stand(self) -> bool:
        """Whether every tensor that modules keep stands where it stood: without a loop of Python's, for there may be
        hundreds."""
        owners, names, tensors = self._in_dicts
        return all(map(is_, map(dict.get, owners, names), tensors)) and all(
            standing(owner, name) is tensor for owner, name, tensor in self._in_cells
        )

    def inputs_of(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What the recording is replayed with for these arguments: they and what is held, parameters above all."""
        leaves, inputs = self._arguments.flatten(args, kwargs), self._held.copy()
        for index, leaf in self._taken:
            inputs[index] = leaves[leaf]
        return inputs


def detach(
    captured: Recording,
    flat_inputs: list[Any],
    flat_outputs: Sequence[Any],
    call_args: tuple[Any, ...],
    call_kwargs: dict[str, Any],
    result: Any,
    *,
    modules: Iterable[nn.Module] = (),
    outputs: Outputs = "reuse",
    constants: Constants | None = None,
) -> DetachedHandle:
    """Make a handle right after a call through torch.compile that ran `captured` on `flat_inputs` and gave `result`.

    `flat_outputs` are what the graph returned. `modules` are looked after: the handle refuses a call after one of the
    tensors that they keep was replaced.

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
    kept = kept_by(modules, held if constants is None else [*held, *constants.tensors])
    return DetachedHandle(captured, held, arguments, results, taken, kept, outputs, constants)


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
    if instead := next((one.instead for one in seen if one.instead), ""):
        raise DetachError(f"this call ran without a recording: {instead}.")
    if not seen and _grad_is_enabled() and _any_wants_grad([*_parameters(modules), *tree_flatten((args, kwargs))[0]]):
        raise DetachError(
            "this call computes gradients, because torch's grad mode is on and a parameter or an argument requires "
            "grad; a recording is for inference. Detach, and call the handle, under torch.no_grad(), or call "
            "model.requires_grad_(False) before."
        )
    if len(seen) != 1:
        raise DetachError(f"this call ran {len(seen)} compiled graphs; only a call of exactly one can be detached.")
    (one,) = seen
    if one.recording is None:
        raise DetachError("this call ran without a recording: capture_limit is reached.")
    return detach(
        one.recording,
        one.inputs,
        one.outputs,
        args,
        kwargs,
        result,
        modules=modules,
        outputs=outputs,
        constants=one.constants,
    )


def call_and_detach(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    modules: Iterable[nn.Module] = (),
    outputs: Outputs = "reuse",
) -> tuple[Any, DetachedHandle | DetachError]:
    """The result of `run(*args, **kwargs)`, made once through torch.compile, with a handle of it or why there is none.

    Raises what the call itself raises.
    """
    results: list[Any] = []

    def call() -> Any:
        results.append(run(*args, **kwargs))
        return results[0]

    try:
        handle = detach_call(call, args, kwargs, modules=modules, outputs=outputs)
    except DetachError as error:
        if not results:
            raise
        return results[0], error
    return results[0], handle


def modules_of(model: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a callable is, belongs to, closes over or names as a global, and all within them."""
    inner = getattr(model, "__func__", model)
    code, closed = getattr(inner, "__code__", None), getattr(inner, "__closure__", None) or ()
    names = code.co_names if code is not None else ()
    found = [model, getattr(model, "__self__", None), *(content_of(cell) for cell in closed)]
    found += [getattr(inner, "__globals__", {}).get(name) for name in names]
    modules = [module for one in found if isinstance(one, nn.Module) for module in one.modules()]
    return list({id(module): module for module in modules}.values())


def _replaced(name: str, before: Any, now: Any) -> str:
    what = "a tensor" if isinstance(before, torch.Tensor) else "an attribute"
    another = "another tensor" if isinstance(now, torch.Tensor) else "another"
    became = "is gone" if now is None else f"is {another} now ({_shown(now)})"
    return (
        f"this call was captured with {what} '{name}' ({_shown(before)}) that {became}: change it in place, or detach "
        "again."
    )


def _shown(value: Any) -> str:
    return _described(value) if isinstance(value, torch.Tensor) else type(value).__name__


def _parameters(modules: Iterable[nn.Module]) -> list[Any]:
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]


def _any_wants_grad(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


class Recapturing:
    """`call(*args, **kwargs)`: the model, by the detached handle of that signature where there is one.

    Where there is none the call goes through torch.compile, once: it compiles and captures what is new, and the handle
    is made of that call. A call that cannot be detached is safe and takes torch.compile's way
    each time. Handles beyond the capture limit go, the one used longest ago first.
    """

    def __init__(
        self, compiled: Callable[..., Any], *, modules: Sequence[nn.Module] = (), outputs: Outputs = "reuse"
    ) -> None:
        """`modules` and `outputs` as for `detach_call`."""
        self._compiled = compiled
        self._how: dict[str, Any] = {"modules": modules, "outputs": outputs}
        self.handles: list[DetachedHandle] = []
        """The one used last stands last."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for place in range(len(self.handles) - 1, -1, -1):
            try:
                result = self.handles[place](*args, **kwargs)
            except SignatureError:  # raised before anything is done
                continue
            self.handles.append(self.handles.pop(place))
            return result
        return self._through_compile(args, kwargs)

    def _through_compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watching() as seen:
            result, handle = call_and_detach(self._compiled, args, kwargs, **self._how)
        if isinstance(handle, DetachedHandle):
            self.handles = [*self.handles, handle][-seen[0].capture_limit :]
        return result
