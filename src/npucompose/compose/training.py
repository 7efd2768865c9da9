"""A model that is trained: a loss at its end, and one call as a step with gradients. Knows no target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from inspect import Signature
from typing import Any

import torch
from attrs import evolve
from torch import nn
from torch.utils._pytree import tree_leaves

from npucompose.errors import ConfigError
from npucompose.models.base import Built
from npucompose.models.inputs import Bound, bind, signature_of


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
