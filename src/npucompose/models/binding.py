"""Named inputs become the arguments of a call: by the signature of what is called, never by their order.

forward(self, x, scale=None, shift=None) with {"shift": s, "x": x} is called as (x, shift=s)
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import Any

from attrs import frozen

from npucompose.errors import ConfigError, did_you_mean, listed


@frozen
class Bound:
    """`function(*bound.args, **bound.kwargs)` is the call; the same values as in the mapping, not copies of them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)


def bind(function: Any, inputs: Mapping[str, Any], where: str = "") -> Bound:
    """The arguments of one call of `function` (a module's forward, or any callable); ConfigError where none fits.

    What may be given by position is, in the signature's order and up to the first parameter that is left out: that is
    the form in which a recording is called without looking names up. The rest goes by keyword. The name of `*args`
    takes a list or tuple, that of `**kwargs` may hold a mapping; names that no parameter has go there too.
    """
    problems = [f"every input needs the name of a parameter: {name!r}" for name in inputs if not isinstance(name, str)]
    signature = None if problems else signature_of(function)
    if signature is not None:
        problems += _problems(signature, inputs)
    if problems:
        form = f" Its signature is {_shown(signature)}." if signature is not None else ""
        raise ConfigError(
            f"{where}{': ' if where else ''}{_named(function)} cannot be called with the inputs "
            f"{listed(map(str, inputs)) if inputs else 'nothing'}: {'; '.join(problems)}.{form}"
        )
    if signature is None:
        return Bound((), dict(inputs))
    return _bound(signature, inputs)


def signature_of(function: Any) -> Signature | None:
    """What a call takes; None where Python does not know, as of a module of TorchScript.

    A module that hands every argument on says so as any callable does, by a `__signature__` of its own.
    """
    if isinstance(own := getattr(function, "__signature__", None), inspect.Signature):
        return own
    try:
        return inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):
        return None


def _bound(signature: Signature, inputs: Mapping[str, Any]) -> Bound:
    open_ended = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    arguments = {name: inputs[name] for name in signature.parameters if name in inputs}
    if open_ended is not None:
        inside = arguments.get(open_ended, {})
        inside = inside if isinstance(inside, Mapping) else {open_ended: inside}
        more = {name: value for name, value in inputs.items() if name not in signature.parameters}
        arguments[open_ended] = {**inside, **more}
    bound = inspect.BoundArguments(signature, OrderedDict(arguments))
    if _must_fill(signature, inputs):
        bound.apply_defaults()
    return Bound(bound.args, bound.kwargs)


def _must_fill(signature: Signature, inputs: Mapping[str, Any]) -> bool:
    """Something that can go by position alone stands behind a parameter that is left out."""
    left_out, nameless = False, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    for name, parameter in signature.parameters.items():
        if left_out and name in inputs and parameter.kind in nameless:
            return True
        left_out = left_out or name not in inputs
    return False


def _problems(signature: Signature, inputs: Mapping[str, Any]) -> Iterator[str]:
    parameters = signature.parameters
    open_ended = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    for name, value in inputs.items():
        parameter = parameters.get(name)
        if parameter is None:
            if open_ended is None:
                hint = did_you_mean(name, parameters).strip()
                yield f"it has no parameter '{name}'" + (f" ({hint[0].lower()}{hint[1:]})" if hint else "")
        elif parameter.kind is parameter.VAR_POSITIONAL and not isinstance(value, Sequence):
            yield f"*{name} takes a list or tuple, not a {type(value).__name__}"
        elif parameter.kind is parameter.VAR_KEYWORD and isinstance(value, Mapping):
            yield from (f"'{key}' is given twice, once inside '{name}'" for key in value if key in inputs)
    for name, parameter in parameters.items():
        needed = parameter.default is parameter.empty
        if needed and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name not in inputs:
            yield f"'{name}' has no default and is missing"


def _shown(signature: Signature) -> str:
    """Names and defaults; annotations and long defaults say nothing about which names there are."""
    shorter = [
        p.replace(annotation=p.empty, default=p.default if p.default is p.empty or len(repr(p.default)) < 30 else ...)
        for p in signature.parameters.values()
    ]
    return str(signature.replace(parameters=shorter, return_annotation=signature.empty))


def _named(function: Any) -> str:
    if hasattr(function, "forward"):
        return f"forward of {type(function).__name__}"
    return getattr(function, "__qualname__", repr(function))
