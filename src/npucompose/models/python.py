"""A model that a user's own module makes. The only model that imports code a configuration names: it needs trust."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model, generator, inference, seeded
from npucompose.models.inputs import bind, mapped
from npucompose.registry import UserFunction, working_directory_importable
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class Python(Model):
    """`factory: mymodel:make` calls make() of mymodel.py, found in the working directory or on sys.path.

    The factory returns a Built, or (module, inputs) with a dict {parameter of forward: example value}. It runs with all
    seeds set; one that has a parameter `seed` is given the seed. From a dict, the inputs of step n > 0 are the same
    with the elements of each floating-point tensor in another order; integers and masks may mean places, and stay.
    """

    name: ClassVar[str] = "python"
    needs_trust: ClassVar[bool] = True
    factory: str = option(doc="module:function")

    def check(self) -> None:
        self._function.check()

    def source_files(self) -> tuple[str, ...]:
        """The file of the factory's module, found without importing anything."""
        return self._function.source_files()

    def build(self, seed: int) -> Built:
        self.check()
        with seeded(seed), working_directory_importable():
            made = self._made(seed)
        return self._built(made, seed)

    @property
    def _function(self) -> UserFunction:
        return UserFunction("model.factory", self.factory)

    def _made(self, seed: int) -> Any:
        function = self._function.load()
        try:
            return function(seed=seed) if _takes_seed(function) else function()
        except (Exception, SystemExit) as error:
            raise self._function.failed("calling it raised", error) from error

    def _built(self, made: Any, seed: int) -> Built:
        from torch import nn

        if isinstance(made, Built):
            if not isinstance(made.module, nn.Module):
                raise self._other(f"a Built whose module is {_described(made.module)}")
            inference(made.module)
            return made
        if not (isinstance(made, tuple) and len(made) == 2):
            raise self._other(_described(made))
        module, examples = made
        if not isinstance(module, nn.Module) or not isinstance(examples, Mapping):
            raise self._other(f"a tuple of {_described(module)} and {_described(examples)}")
        bind(module, examples, f"model.factory '{self.factory}'")
        return Built(module=inference(module), inputs=lambda step: _reordered(examples, seed, step))

    def _other(self, what: str) -> ConfigError:
        return ConfigError(
            f"model.factory '{self.factory}' returned {what}; it must return npucompose.models.Built, or a tuple "
            f"(torch.nn.Module, dict of forward's arguments)."
        )


def _described(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _takes_seed(function: Callable[..., Any]) -> bool:
    parameter = inspect.signature(function).parameters.get("seed")
    return parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY


def _reordered(examples: Mapping[str, Any], seed: int, step: int) -> Inputs:
    g = generator(seed, step)

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        return _permuted(tensor, g) if step and tensor.is_floating_point() else tensor.detach().clone()

    # By name, so that the order in which a factory writes its inputs changes no value.
    return mapped({name: examples[name] for name in sorted(examples)}, fresh)


def _permuted(tensor: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """The tensor's elements in another order, in a fresh tensor with the same strides."""
    import torch

    order = torch.randperm(tensor.numel(), generator=g)
    fresh = tensor.detach().clone()
    return fresh.copy_(tensor.detach().reshape(-1)[order].view(tensor.shape))
