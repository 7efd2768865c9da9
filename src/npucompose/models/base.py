"""What a model is: options in YAML, a module and named example inputs out. Knows no device."""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.experiment import Call, ScenarioName
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from npucompose.models.generation import Generations

Inputs = Mapping[str, Any]
"""{parameter name of forward: tensor, number, list of ints, text, None, …}, in any order (`inputs.bind`)."""


STEPS = 3


@frozen(kw_only=True, eq=False)
class Built:
    """A module in eval mode (parameters without grad) and where its inputs come from.

    `inputs(0)` are the example inputs; `inputs(step)` for step > 0 are other values of the same shapes, made from the
    same seed: equal calls give equal values in fresh tensors.
    """

    module: nn.Module
    inputs: Callable[[int], Inputs]
    steps: int = STEPS
    """How many different inputs a comparison with eager should use (`inputs(0)` … `inputs(steps - 1)`)."""
    generations: Generations | None = None
    """Steps of greedy generation on the weights of the module; None of a model that generates nothing."""


@frozen(kw_only=True)
class Model(ABC):
    """A named model; its fields are its options. Importing the file of a model loads no torch."""

    name: ClassVar[str]
    needs_trust: ClassVar[bool] = False
    """Building it imports code that a configuration names."""
    scenarios: ClassVar[tuple[ScenarioName, ...]] = ("forward",)
    """What can be run of it; one with more than `forward` has the experiment's `scenario` in a field."""
    sequence: tuple[Call, ...] = option(
        factory=tuple, doc="calls after the first, each as what it changes in the inputs: {x.0: 6, times: 4}"
    )

    def check(self) -> None:
        """Raise ConfigError (MissingExtra, …) when this machine cannot build it. Loads no torch."""

    @property
    def title(self) -> str:
        """What reports and tables call it."""
        return self.name

    def settled(self) -> tuple[Model, Mapping[str, str]]:
        """The model with what only its own code says written out, and {option: who says it}; imports nothing."""
        return self, {}

    @abstractmethod
    def build(self, seed: int) -> Built:
        """Build module and inputs; the same seed gives the same weights and inputs, whatever ran before."""

    def source_files(self) -> tuple[str, ...]:
        """Files outside the package whose content the model depends on (a user's factory): part of the key."""
        return ()


@frozen(kw_only=True)
class Network(Model):
    """A model that says its module and its inputs apart; the seeds are set here."""

    def build(self, seed: int) -> Built:
        self.check()
        with seeded(seed):
            module = inference(self.network())
        return Built(module=module, inputs=lambda step: self.inputs(step, generator(seed, step)))

    @abstractmethod
    def network(self) -> nn.Module:
        """The module, its weights drawn from torch's global generator. Its class is made inside, where torch is."""

    @abstractmethod
    def inputs(self, step: int, chance: Generator) -> Inputs:
        """What forward takes in one step."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator, `random` and numpy's global one start from `seed`; then they are restored."""
    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the devices, whose state fork_rng does not restore here.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def generator(seed: int, step: int) -> Generator:
    """The source of the inputs of one step: `generator(0, 0)`, `generator(0, 1)` and `generator(1, 0)` all differ."""
    import torch

    return torch.Generator().manual_seed((seed * 1_000_003 + step + 1) % 2**63)


def refuse_undivided(heads: int, kv_heads: int) -> None:
    """ConfigError where heads of the query cannot share those of key and value evenly."""
    if heads % kv_heads:
        raise ConfigError(f"model.kv_heads={kv_heads} does not divide model.heads={heads}.")


def refuse_odd(name: str, width: int) -> None:
    """ConfigError for a width whose halves rotary position would turn against each other."""
    if width % 2:
        raise ConfigError(f"model.{name}={width} must be even: its halves are turned against each other.")


def normal(chance: Generator, *shape: int) -> Tensor:
    """Normal numbers out of a step's source."""
    import torch

    return torch.randn(shape, generator=chance)


def inference(module: nn.Module) -> nn.Module:
    """The module in eval mode, its parameters without grad."""
    return module.eval().requires_grad_(False)
