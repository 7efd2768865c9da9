"""A call of the model: its inputs as `model.sequence` and the shape policy change them, and a training step.

Knows no target.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import Any

import torch
from attrs import evolve
from torch import nn
from torch.utils._pytree import tree_leaves

from npucompose.errors import ConfigError, did_you_mean, listed, raise_for, unknown
from npucompose.models.base import Built
from npucompose.models.inputs import Bound, bind, signature_of, tensors_of
from npucompose.schema.experiment import WORDS, Call, Change, Shapes, dimension_of
from npucompose.schema.streams import matches


def check_calls(sequence: Sequence[Call], example: Mapping[str, Any]) -> None:
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
    raise_for(problems)


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
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{listed(map(str, value.shape))}]"
    return repr(value)


# The shape policy: torch._dynamo.mark_static and mark_dynamic by argument name.


SetGears = Callable[[Any, dict[int, list[int]]], None]


def apply_shapes(
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
    raise_for(problems)


def gears_of(shapes: Shapes, inputs: Mapping[str, Any], problems: list[str]) -> dict[str, dict[int, list[int]]]:
    """`{"x.0": (2, 4)}` as `{"x": {0: [2, 4]}}`; what is wrong in it is added to `problems`."""
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


def is_static(policy: Shapes, name: str) -> bool:
    """`mark_static` names this argument."""
    return any(matches(pattern, name) for pattern in policy.mark_static)


# A model that is trained: a loss at its end, and one call as a step with gradients. Knows no target.


class WithLoss(nn.Module):
    """`(loss,)`: the mean of the squares of all floating-point outputs, so that each of them has a gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def __signature__(self) -> Signature | None:
        return signature_of(self.model)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor]:
        made = tree_leaves(self.model(*args, **kwargs))
        outputs = [t for t in made if isinstance(t, torch.Tensor) and t.is_floating_point()]
        loss = outputs[0].square().mean()
        for output in outputs[1:]:
            loss = loss + output.square().mean()
        return (loss,)


def with_loss(built: Built, index: int) -> Built:
    """The model with gradients for every parameter; as it is where its output `index` is a number already.

    It stays in eval mode: dropout draws other numbers in a compiled graph than in eager. ConfigError for a model
    without parameters, and for an output that is no loss at an `index` other than 0.
    """
    module = built.module.requires_grad_(True)
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"compile.training=true: {type(module).__name__} has no parameters to train.")
    with torch.no_grad():
        outputs = bind(module, built.inputs(0))(copy.deepcopy(module))
    if _is_loss(outputs, index):
        return built
    if index:
        raise ConfigError(
            f"compiler.experimental_config.aot_config_output_loss_index={index}: output {index} of "
            f"{type(module).__name__} is no single floating-point number. With 0, a loss is put at the model's end."
        )
    return evolve(built, module=WithLoss(module))


def _is_loss(outputs: Any, index: int) -> bool:
    if not isinstance(outputs, (tuple, list)) or index >= len(outputs):
        return False
    found = outputs[index]
    return isinstance(found, torch.Tensor) and found.dim() == 0 and found.is_floating_point()


def step(function: Callable[..., Any], modules: Sequence[nn.Module], call: Bound, index: int) -> dict[str, Any]:
    """Forward and backward: `{"outputs": …, "gradients": {parameter: gradient}}`; no gradient is left behind.

    A joint graph sets the gradients in its forward call and returns a loss without history; then there is no backward
    to call. `modules` are those that `function` may compute with; they share their parameters. What a step has written
    into their buffers (a cache) is a constant for the next one.
    """
    module = modules[0]
    module.zero_grad(set_to_none=True)
    with torch.enable_grad():
        outputs = call(function)
        if outputs is None:  # an export runs nothing
            return {}
        loss = outputs[index]
        if loss.requires_grad:
            loss.backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    for buffer in (b for m in modules for b in m.buffers()):
        buffer.detach_()
    return {"outputs": [t.detach() for t in tree_leaves(outputs)], "gradients": gradients}
