"""Named inputs become the arguments of a call, by the signature of what is called and never by their order; and the
tensors inside them: in lists, dicts, dataclasses, objects with attributes (a cache of keys).

forward(self, x, scale=None, shift=None) with {"shift": s, "x": x} is called as (x, shift=s)

Example inputs that a configuration gives are a table of names, or a saved file. Neither runs a person's code.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from attrs import frozen

from npucompose.errors import ConfigError, MissingExtra, did_you_mean, listed
from npucompose.models.base import Inputs, generator
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor


T = TypeVar("T")


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
        problems += call_problems(signature, inputs)
    if problems:
        form = f" Its signature is {shown_signature(signature)}." if signature is not None else ""
        raise ConfigError(
            f"{where}{': ' if where else ''}{_named(function)} cannot be called with the inputs "
            f"{listed(map(str, inputs)) if inputs else 'nothing'}: {'; '.join(problems)}.{form}"
        )
    if signature is None:
        return Bound((), dict(inputs))
    return bound(signature, inputs)


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


def bound(signature: Signature, inputs: Mapping[str, Any]) -> Bound:
    """The arguments of a call in which `call_problems` found nothing wrong."""
    open_ended = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    arguments = {name: inputs[name] for name in signature.parameters if name in inputs}
    if open_ended is not None:
        inside = arguments.get(open_ended, {})
        inside = inside if isinstance(inside, Mapping) else {open_ended: inside}
        more = {name: value for name, value in inputs.items() if name not in signature.parameters}
        arguments[open_ended] = {**inside, **more}
    call = inspect.BoundArguments(signature, OrderedDict(arguments))
    if _must_fill(signature, inputs):
        call.apply_defaults()
    return Bound(call.args, call.kwargs)


def _must_fill(signature: Signature, inputs: Mapping[str, Any]) -> bool:
    """Something that can go by position alone stands behind a parameter that is left out."""
    left_out, nameless = False, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    for name, parameter in signature.parameters.items():
        if left_out and name in inputs and parameter.kind in nameless:
            return True
        left_out = left_out or name not in inputs
    return False


def call_problems(signature: Signature, inputs: Mapping[str, Any]) -> Iterator[str]:
    """A clause for each name that has no place and each parameter that is left without a value."""
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


def shown_signature(signature: Signature) -> str:
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


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `value`, each once: in containers in their order, in objects in the order of their attributes."""
    yield from _tensors(value, set())


def mapped(value: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """A deep copy with `change(tensor)` for each tensor; a tensor that stands in two places stays one tensor."""
    return copy.deepcopy(value, {id(tensor): change(tensor) for tensor in tensors_of(value)})


def opened(value: Any) -> Any:
    """`value` with objects that no comparison can look into as dicts of their attributes, to any depth.

    `opened([Cache(keys=k)])` is `[{"Cache": {"keys": k}}]`. What pytree or `==` knows stays as it is.
    """
    from torch.utils._pytree import tree_map

    def of_leaf(leaf: Any, around: tuple[int, ...] = ()) -> Any:
        if not _is_opaque(leaf) or id(leaf) in around:
            return leaf if not _is_opaque(leaf) else f"the {type(leaf).__name__} around it"
        held = dict(leaf) if isinstance(leaf, Mapping) else dict(vars(leaf))
        inside = tree_map(lambda inner: of_leaf(inner, (*around, id(leaf))), held)
        return {type(leaf).__name__: inside}

    return tree_map(of_leaf, value)


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    import torch
    from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

    if id(value) in seen or isinstance(value, (str, bytes, int, float, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    elif type(value) in SUPPORTED_NODES:
        inside = tree_leaves(value)
    else:
        inside = list(vars(value).values()) if _has_attributes(value) else []
    for one in inside:
        yield from _tensors(one, seen)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value)


def _is_opaque(value: Any) -> bool:
    """Two equal ones would be told apart, or could not be compared at all (a dataclass of tensors)."""
    import torch

    if isinstance(value, torch.Tensor) or not _has_attributes(value):
        return False
    return isinstance(value, Mapping) or type(value).__eq__ is object.__eq__ or dataclasses.is_dataclass(value)


DType = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]  # fmt: skip
SUFFIXES = (".pt", ".pth", ".safetensors")


@frozen(kw_only=True)
class InputSpec:
    """A tensor by its dtype, its sizes and the range of its elements, which every step draws anew."""

    dtype: DType = option("float32", "of the tensor")
    sizes: tuple[int, ...] = option(doc="a size for each dimension; []: a tensor of one element without dimensions")
    range: tuple[float, float] | None = option(
        None,
        "from, and up to but without; null: normal numbers, 0 and 1 for integers",
        optional=True,
    )

    def __attrs_post_init__(self) -> None:
        if any(size < 0 for size in self.sizes):
            raise ValueError(f"'sizes' must be at least 0: {list(self.sizes)}")
        if self.range is None:
            return
        low, high = self.range
        if self.dtype == "bool":
            raise ValueError("'range' says nothing of a bool")
        if not low < high:
            raise ValueError(f"'range' must be [from, to] with from below to: {[low, high]}")
        if not self.is_floating_point and (low, high) != (int(low), int(high)):
            raise ValueError(f"'range' of {self.dtype} must be two integers: {[low, high]}")

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.dtype

    def tensor(self, chance: Generator) -> Tensor:
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.is_floating_point:
            low, high = map(int, self.range or (0, 2))
            return torch.randint(low, high, self.sizes, generator=chance).to(dtype)
        if self.range is None:
            return torch.randn(self.sizes, generator=chance).to(dtype)
        low, high = self.range
        return (torch.rand(self.sizes, generator=chance, dtype=torch.float64) * (high - low) + low).to(dtype)


def from_table(table: Mapping[str, InputSpec], seed: int) -> Callable[[int], Inputs]:
    """The inputs of each step; in which order the table names them changes no value."""

    def inputs(step: int) -> Inputs:
        chance = generator(seed, step)
        return {name: table[name].tensor(chance) for name in sorted(table)}

    return inputs


def check_file(name: str, where: str) -> None:
    """ConfigError unless there is such a file, of a kind that can be read; reads nothing of it."""
    if Path(name).suffix not in SUFFIXES:
        raise ConfigError(f"{where}={name}: a file of torch.save (.pt, .pth) or a .safetensors is read, no other.")
    if not Path(name).is_file():
        raise ConfigError(f"{where}={name}: there is no such file.")
    if name.endswith(".safetensors") and importlib.util.find_spec("safetensors") is None:
        raise MissingExtra(f"{where}={name}", "safetensors", "transformers")


def from_file(name: str, where: str) -> Inputs:
    """What the file holds under each name: tensors and, from torch.save, numbers, text, lists and dicts too.

    A pickle is read as torch.load(weights_only=True) reads it, which calls nothing that the file names.
    """
    check_file(name, where)
    try:
        loaded: Any = _loaded(name)
    except Exception as error:  # whatever a reader says of a file that is none
        raise ConfigError(f"{where}={name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", loaded)):
        raise ConfigError(f"{where}={name} holds a {type(loaded).__name__}; it must be a dict of forward's arguments.")
    return cast("Inputs", loaded)


def _loaded(name: str) -> Any:
    if name.endswith(".safetensors"):
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        return load_file(name)
    import torch

    return torch.load(name, map_location="cpu", weights_only=True)
