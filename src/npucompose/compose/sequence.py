"""`model.sequence` on real inputs: checked against the example, then applied to fresh inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.errors import ConfigError, listed, unknown
from npucompose.models.nested import tensors_of
from npucompose.schema.experiment import WORDS, Call, Change, dimension_of

if TYPE_CHECKING:
    import torch


def check(sequence: Sequence[Call], example: Mapping[str, Any]) -> None:
    """Raise one ConfigError with every change that the example inputs cannot take."""
    problems: list[str] = []
    for at, call in enumerate(sequence):
        where = f"model.sequence[{at}]"
        for key, change in call.items():
            name, dimension = dimension_of(key)
            if name not in example:
                problems.append(unknown("input", name, list(example), where))
            elif problem := _problem(name, dimension, change, example[name]):
                problems.append(f"{problem} @ {where}.")
    if problems:
        raise ConfigError(*problems)


def unmarked(call: Call) -> frozenset[str]:
    """Inputs that this call leaves without the marks of `shapes`."""
    return frozenset(name for name, change in call.items() if change == "unmarked")


def varied(call: Call, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`inputs` with the changes of a checked call.

    A tensor keeps dtype, device and the order of its strides; where it grows its elements are repeated, so that
    indices and masks stay as valid as they were. `varied({"x.0": 3}, {"x": tensor([7, 8])})` holds tensor([7, 8, 7]).
    """
    changed = dict(inputs)
    for key, change in call.items():
        name, dimension = dimension_of(key)
        if dimension is not None:
            changed[name] = _resized(changed[name], dimension, int(change))  # type: ignore[arg-type]
        elif change == "transposed":
            changed[name] = changed[name].transpose(-1, -2).contiguous().transpose(-1, -2)
        elif change != "unmarked":
            changed[name] = type(inputs[name])(change)  # pyright: ignore[reportCallIssue]
    return changed


def _resized(tensor: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """The tensor with `size` elements along a dimension: cut, or repeated from the start."""
    import torch

    outer_first = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    index = torch.arange(size, device=tensor.device) % tensor.shape[dimension]
    dense = tensor.permute(outer_first).index_select(outer_first.index(dimension), index)
    return dense.permute([outer_first.index(d) for d in range(tensor.dim())])


def _problem(name: str, dimension: int | None, change: Change, value: Any) -> str | None:
    """Why an input that is `value` in the example cannot take this change; without the place and the full stop."""
    if dimension is not None:
        return _size_problem(name, dimension, change, value)
    if change in WORDS:
        return _word_problem(name, str(change), value)
    wanted = _kind(value)
    if wanted is None:
        return f"'{name}' is {_shown(value)} and takes no {change!r}: change its sizes with {name}.0 and so on"
    if _kind(change) != wanted and (wanted, _kind(change)) != ("a number", "an integer"):
        return f"'{name}' must be {wanted}, as in the example inputs ({_shown(value)}): {_yaml(change)}"
    return None


def _size_problem(name: str, dimension: int, size: Change, value: Any) -> str | None:
    import torch

    key = f"{name}.{dimension}"
    if not isinstance(value, torch.Tensor):
        return f"'{key}' names a dimension, but '{name}' is {_shown(value)} and no tensor"
    if dimension >= value.dim():
        return f"'{key}' names no dimension: '{name}' has rank {value.dim()}, {_shown(value)}"
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        return f"'{key}' must be a size, an integer of at least 0: {_yaml(size)}"
    if size and not value.shape[dimension]:
        return f"'{key}' cannot grow to {size}: the example is empty there and has nothing to repeat"
    return None


def _word_problem(name: str, word: str, value: Any) -> str | None:
    import torch

    if word == "transposed" and not (isinstance(value, torch.Tensor) and value.dim() >= 2):
        return f"'{name}: transposed' needs a tensor of at least 2 dimensions; '{name}' is {_shown(value)}"
    if word == "unmarked" and not any(True for _ in tensors_of(value)):
        return f"'{name}: unmarked' needs a tensor; '{name}' is {_shown(value)}"
    return None


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return "a list of integers"
    return None


def _yaml(change: Change) -> str:
    return str(list(change)) if isinstance(change, tuple) else repr(change)


def _shown(value: Any) -> str:
    """A tensor by dtype and shape, anything else as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{listed(map(str, value.shape))}]"
    return repr(value)
