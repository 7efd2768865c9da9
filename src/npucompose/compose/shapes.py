"""The shape policy, applied to real inputs: torch._dynamo.mark_static and mark_dynamic by argument name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npucompose.errors import ConfigError, did_you_mean, listed
from npucompose.models.nested import tensors_of
from npucompose.schema.experiment import Shapes
from npucompose.schema.streams import fits

if TYPE_CHECKING:
    import torch


SetGears = Callable[[Any, dict[int, list[int]]], None]


def apply(
    shapes: Shapes,
    inputs: Mapping[str, Any],
    set_gears: SetGears | None = None,
    *,
    unmarked: frozenset[str] = frozenset(),
) -> None:
    """Mark the tensors of `inputs` in place, also inside lists, dicts and objects, those of `unmarked` excepted.

    `set_gears` is the device's own way to say which sizes a dimension may have; None where there is none.

    `Shapes(mark_static=("cache_*",))` marks every tensor of the arguments cache_k and cache_v. A name that finds no
    argument, an argument without tensors, and a dimension that is not there are ConfigErrors.
    """
    import torch._dynamo

    problems: list[str] = []
    for pattern in shapes.mark_static:
        for name, tensor in _marked("mark_static", pattern, inputs, problems):
            if name not in unmarked:
                torch._dynamo.mark_static(tensor)
    for pattern, dims in shapes.mark_dynamic.items():
        for name, tensor in _marked("mark_dynamic", pattern, inputs, problems):
            for dim in dims:
                if not -tensor.dim() <= dim < tensor.dim():
                    problems.append(
                        f"dimension {dim} of '{name}' @ shapes.mark_dynamic: it has {tensor.dim()} dimensions, "
                        f"{tuple(tensor.shape)}."
                    )
                elif name not in unmarked:
                    torch._dynamo.mark_dynamic(tensor, dim % tensor.dim())
    for name, gears in gears_of(shapes, inputs, problems).items():
        if set_gears is not None and not problems and name not in unmarked:
            set_gears(inputs[name], gears)
    if problems:
        raise ConfigError(*problems)


def gears_of(shapes: Shapes, inputs: Mapping[str, Any], problems: list[str]) -> dict[str, dict[int, list[int]]]:
    """`{"x.0": (2, 4)}` as `{"x": {0: [2, 4]}}`; what is wrong in it is added to `problems`."""
    import torch

    found: dict[str, dict[int, list[int]]] = {}
    for key, sizes in shapes.gears.items():
        name, _, dimension = key.rpartition(".")
        tensor = inputs.get(name)
        if not isinstance(tensor, torch.Tensor) or not dimension.isdigit() or int(dimension) >= tensor.dim():
            tensors = [f"{n} {tuple(t.shape)}" for n, t in inputs.items() if isinstance(t, torch.Tensor)]
            problems.append(f"'{key}' @ shapes.gears is no input.dimension. Inputs: {listed(tensors)}.")
        elif tensor.shape[int(dimension)] not in sizes:
            given = tensor.shape[int(dimension)]
            problems.append(f"'{key}' @ shapes.gears: the input has size {given}, which is none of {list(sizes)}.")
        else:
            found.setdefault(name, {})[int(dimension)] = list(sizes)
    return found


def _marked(
    option: str, pattern: str, inputs: Mapping[str, Any], problems: list[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    names = [name for name in inputs if matches(pattern, name)]
    if not names:
        problems.append(
            f"'{pattern}' @ shapes.{option} names no input. {did_you_mean(pattern, inputs)}Inputs: {listed(inputs)}."
        )
    for name in names:
        tensors = list(tensors_of(inputs[name]))
        if not tensors:
            problems.append(f"'{name}' @ shapes.{option} is {inputs[name]!r}: it holds no tensor to mark.")
        for tensor in tensors:
            yield name, tensor


def matches(pattern: str, name: str) -> bool:
    """`fits`, with a ConfigError for a regular expression that is none."""
    try:
        return fits(pattern, name)
    except re.error as error:
        raise ConfigError(f"'{pattern}' @ shapes is not a regular expression: {error}.") from error


def is_static(policy: Shapes, name: str) -> bool:
    """`mark_static` names this argument."""
    return any(matches(pattern, name) for pattern in policy.mark_static)
